"""Artefacts: small, with provenance, and what is written is what is read."""

from pathlib import Path

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import SHIPPED, load_models, save_models, shipped_models


def test_the_shipped_artefacts_are_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 10e6


def test_every_shipped_model_says_where_it_comes_from_and_how_well_it_does() -> None:
    for model in shipped_models():
        made = model.provenance
        assert made.source and made.date and made.rows > 100 and made.held_out_rows > 10, model.family
        assert 0 < made.gmae < made.mape < 0.25


def test_a_model_survives_the_disk(tmp_path: Path) -> None:
    model = next(m for m in shipped_models() if m.family == "softmax")
    path = tmp_path / "one.npz"
    save_models(path, [model])
    (again,) = load_models(path)
    batch = Batch.of("softmax", "fp32", {"rows": np.array([100.0, 9000.0]), "cols": np.array([77.0, 1024.0])})
    before, _ = model.time_us(batch, model.machine)
    after, _ = again.time_us(batch, again.machine)
    assert after == pytest.approx(before)
    assert again.provenance == model.provenance


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(b"not an archive")
    with pytest.raises(InputError, match=r"bad\.npz"):
        load_models(path)
