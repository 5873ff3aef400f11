"""Scoring lookups: splits by table set, the blind comparison, and sources left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lab.fit.embedding.gpu import MeasuredKernel, fit_coefficients, predict
from lab.fit.embedding.points import DEFAULT, POINTS, measured_kernels
from lab.score.embedding.cpu import cpu_scores, held_out, repeat_error, table_sets
from lab.score.embedding.topic import command, gpu_scores, hit_rate_score
from stepsight.calibrate.lookups.microbench import LookupSample, write_samples
from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.embedding.cpu.work import work
from stepsight.program.job import Kernel
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

CACHES = (32e3, 1e6, 32e6)


def made_up_samples(count: int = 60) -> list[LookupSample]:
    """A machine whose time is dominated by rows that come from memory."""
    rng, samples = np.random.default_rng(0), []
    for _ in range(count):
        tables = [
            (int(10 ** rng.uniform(4, 6.5)), IndexDistribution.zipf(round(float(rng.uniform(0, 1.3)), 2)))
            for _ in range(rng.integers(1, 4))
        ]
        for batch in (512, 2048):
            lookup = Lookup(tuple(TableLookup(rows, 64, batch, 20, i) for rows, i in tables))
            times = []
            for phase in ("forward", "backward"):
                done = work(lookup.tables, CACHES, phase)
                times.append(20 + done[:, 2] * 1e-3 + done[:, 7] * 8e-3)
            samples.append(
                LookupSample(lookup, np.array(times) * rng.normal(1, 0.01, (2, 3, 2, len(tables))))
            )
    return samples


def test_batches_of_the_same_tables_are_one_set() -> None:
    sets = table_sets(made_up_samples(5))
    np.testing.assert_array_equal(sets, np.repeat(np.arange(5), 2))


def test_knowing_the_distribution_beats_not_knowing_it() -> None:
    samples = made_up_samples()
    known, blind = held_out(samples, CACHES), held_out(samples, CACHES, blind=True)
    assert len(known.measured["forward"]) == 24

    def error(of: object) -> float:
        return float(np.mean(np.abs(of.predicted["forward"] / of.measured["forward"] - 1)))

    assert error(known) < 0.03 < error(blind)


def test_scores_stand_beside_the_repeat_error() -> None:
    samples = made_up_samples()
    assert repeat_error(samples)["forward"] < 0.02
    names = [score.name for score in cpu_scores(samples, CACHES)]
    assert names[:2] == ["CPU forward", "CPU forward, without the distribution"]
    assert cpu_scores(samples[:3], CACHES) == []


def test_hit_rates_are_within_two_points_of_lru() -> None:
    assert hit_rate_score().met


def test_rows_of_the_fit_are_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel("embedding", (), "fp32")
    points = [MeasuredKernel(source, load_gpu("V100-SXM2-16G"), kernel, 10.0) for source in (POINTS, DEFAULT)]
    monkeypatch.setattr("lab.score.embedding.topic.predict", lambda p: np.full(len(p), 11.0))
    monkeypatch.setattr("lab.score.embedding.topic.predict_left_out", lambda p: np.full(len(p), 12.0))
    fitted = {line.name: line.exposure for line in gpu_scores(points)}
    assert fitted["V100 points"] == fitted["V100 DLRM lists' lookups"] == "fit"
    assert fitted[f"{POINTS}, left out"] == "chosen"
    assert {line.exposure for line in gpu_scores(points, fitted=False)} == {"blind"}


def test_samples_alone_can_be_scored_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_samples(tmp_path / "s.json", made_up_samples(), CACHES)
    arguments = ["--samples", str(tmp_path / "s.json"), "--plot", str(tmp_path / "p.png")]
    shown = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert "CPU" in shown.stdout
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_too_few_samples_are_said(tmp_path: Path) -> None:
    write_samples(tmp_path / "s.json", made_up_samples(2), CACHES)
    with pytest.raises(InputError, match="4 lookups are too few"):
        CliRunner().invoke(command, ["--samples", str(tmp_path / "s.json")], catch_exceptions=False)


@pytest.mark.data
def test_coefficients_can_be_fitted_again_without_a_source(measured_data: Path) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("pyarrow")
    points = [p for p in measured_kernels(measured_data) if p.source != DEFAULT]
    fitted = fit_coefficients(points)
    assert 0.7 <= fitted.read_efficiency <= 0.95
    assert len(predict(points)) == len(points)
