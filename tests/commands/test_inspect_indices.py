"""``stepsight inspect indices``: statistics and a picture of an index file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stepsight.commands.inspect import indices as command
from stepsight.errors import InputError


@pytest.fixture
def index_file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lengths = np.array([[3] * 200, [1] * 200])
    indices = np.concatenate([rng.integers(0, 50, 600), np.arange(200)])
    np.savez(tmp_path / "x.npz", indices=indices, lengths=lengths)
    return tmp_path / "x.npz"


def test_json_has_every_statistic_of_every_table(index_file: Path) -> None:
    result = CliRunner().invoke(command, [str(index_file), "--json"], catch_exceptions=False)
    first, second = json.loads(result.stdout)["tables"]
    assert (first["lookups"], first["bags"], first["mean_pooling"], first["unique_rows"]) == (
        600,
        200,
        3.0,
        50,
    )
    assert (second["unique_rows"], second["mean_reuse"], second["reuse"][0]) == (200, 1.0, 1.0)
    assert first["hit_rate"][-1] == pytest.approx(1 - 50 / 600)
    assert len(first["reuse"]) == 17


def test_a_batch_looks_different_from_the_whole_file(index_file: Path) -> None:
    arguments = [str(index_file), "--json", "--table", "0", "--batch", "5"]
    (table,) = json.loads(CliRunner().invoke(command, arguments, catch_exceptions=False).stdout)["tables"]
    assert (table["bags"], table["lookups"]) == (5, 15)


def test_the_terminal_shows_the_table_and_both_pictures(index_file: Path) -> None:
    shown = CliRunner().invoke(command, [str(index_file)], catch_exceptions=False).stdout
    assert "distinct rows by how often" in shown
    assert "hit rate by the rows a cache holds" in shown
    assert "█" in shown


def test_an_empty_file_is_said(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(0, dtype=np.int64))
    with pytest.raises(InputError, match="not empty"):
        CliRunner().invoke(command, [str(tmp_path / "x.npy")], catch_exceptions=False)
