"""Fitting: a law hidden in synthetic rows is found again, and held-out shapes stay out."""

import numpy as np

from lab.fit.kernels.boost import Settings, boost
from lab.fit.kernels.events import path_reading_us
from lab.fit.kernels.learn import fit_streams, gemm_anchors, learn
from lab.fit.kernels.sources import Measured, held_out
from stepsight.kernels.columns import Batch
from stepsight.kernels.learned.model import BASE_US, EventPath, light_us
from stepsight.kernels.machine import Machine

MACHINE = Machine("test", "ampere", 20.0, 1500.0, 108, 40.0)


def shapes(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {key: np.floor(np.exp(rng.uniform(np.log(64), np.log(4096), n))) for key in ("m", "n", "k")}


def measured(batch: Batch, time_us: np.ndarray) -> Measured:
    apart = held_out(batch.dims, ("m", "n", "k")) if "m" in batch.dims else np.arange(len(time_us)) % 10 == 0
    return Measured("test", batch, "linear", time_us, None, True, "made up", apart)


def test_the_split_hangs_on_the_shape_alone() -> None:
    dims = shapes(5000)
    first = held_out(dims, ("m", "n", "k"))
    order = np.random.default_rng(1).permutation(5000)
    again = held_out({key: column[order] for key, column in dims.items()}, ("m", "n", "k"))
    assert (again == first[order]).all()
    assert 0.08 < first.mean() < 0.12


def test_whole_pairs_are_held_out_together() -> None:
    dims = {"m": np.arange(1.0, 101), "n": np.full(100, 512.0), "k": np.full(100, 64.0)}
    assert len(set(held_out(dims, ("n", "k")).tolist())) == 1


def test_a_hidden_efficiency_is_found_and_the_event_path_taken_off() -> None:
    batch = Batch.of("gemm", "fp32", shapes(3000))
    efficiency = np.where(batch.dims["k"] > 700, 0.8, 0.5)
    kernel_us = (BASE_US + light_us(batch, MACHINE)) / efficiency
    path = EventPath(added_us=15.0, floor_us=40.0)
    model = learn(
        [measured(batch, path_reading_us(path, kernel_us, batch.dims, MACHINE.sms))],
        MACHINE,
        Settings(trees=100),
        path=path,
    )
    assert model.provenance.mape < 0.03
    large = Batch.of(
        "gemm", "fp32", {"m": np.array([3000.0]), "n": np.array([3000.0]), "k": np.array([2000.0])}
    )
    found, outside = model.time_us(large, MACHINE)
    assert abs(found[0] / (light_us(large, MACHINE)[0] / 0.8) - 1) < 0.03
    assert outside[0] == 0


def test_anchors_lie_well_below_the_launch_floor() -> None:
    anchors = gemm_anchors(MACHINE, 60.0, batched=True, seed=1)
    assert len(anchors.time_us) > 100
    assert anchors.time_us.max() < 30


def test_anchors_stay_within_the_measured_sizes() -> None:
    anchors = gemm_anchors(MACHINE, 60.0, batched=True, seed=1, most={"k": 512.0, "batch": 16.0})
    assert anchors.batch.dims["k"].max() <= 512 and anchors.batch.dims["batch"].max() <= 16
    assert anchors.batch.dims["m"].max() > 512


def test_clipped_residuals_keep_disturbed_rows_from_bending_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    columns = rng.random((3, 2000))
    target = np.where(columns[0] > 0.5, 1.0, 0.0)
    disturbed = target + np.where(rng.random(2000) < 0.1, 3.0, 0.0)
    clipped = boost(columns, disturbed, Settings(trees=80, depth=3, rate=0.3, clip=0.2))
    plain = boost(columns, disturbed, Settings(trees=80, depth=3, rate=0.3))
    errors = [np.abs(trees.predict(columns.astype(np.float32)) - target).mean() for trees in (clipped, plain)]
    assert errors[0] < errors[1] / 3


def test_streams_read_bandwidth_off_the_slope_and_the_event_path_off_the_intercept() -> None:
    elements = np.geomspace(1e6, 1e8, 80)
    batch = Batch.of("elementwise", "fp32", {"elements": elements}, "relu")
    time_us = 12.4 + batch.bytes / (0.8 * 1500e3)
    part = Measured("test", batch, "relu", time_us, None, True, "made up", np.arange(80) % 10 == 0)
    fitted = fit_streams([part], MACHINE)
    assert abs(fitted.share["relu"] - 0.8) < 0.001
    assert abs(fitted.path["relu"].added_us - 10.0) < 0.1
