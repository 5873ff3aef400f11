"""Random workloads: seeded, valid, never shared by calibration and validation; and the kernels in them."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.calibrate.draws import (
    BATCHES_PER_RANK,
    CALIBRATION,
    HEAVY_POOLING,
    VALIDATION,
    chosen_kernels,
    kernels_of,
    random_dlrm,
    random_transformer,
    rehearsal_documents,
    scaled,
)
from stepsight.kernels.measured import variant
from stepsight.program.job import Kernel
from stepsight.workload.files import parse_workload


@pytest.mark.parametrize("seed", range(4))
def test_every_draw_is_a_workload(seed: int) -> None:
    for document in (random_dlrm(2, seed), random_transformer(2, seed, family="gpt2")):
        assert parse_workload(dict(document), document["name"]).job("cpu").ranks == 2


def test_the_same_seed_draws_the_same_workload() -> None:
    assert random_dlrm(2, 7) == random_dlrm(2, 7)
    assert random_transformer(2, 7) == random_transformer(2, 7)


def test_validation_scores_on_other_workloads_than_calibration_saw() -> None:
    for seed in range(20):
        seen, scored = random_dlrm(2, seed, CALIBRATION), random_dlrm(2, seed, VALIDATION)
        assert (seen["dense"], seen["tables"]) != (scored["dense"], scored["tables"])


def test_every_other_dlrm_has_only_heavy_tables() -> None:
    assert all(t["pooling"] >= HEAVY_POOLING for t in random_dlrm(2, 0)["tables"])
    assert all(t["pooling"] <= HEAVY_POOLING for t in random_dlrm(2, 1)["tables"])


@pytest.mark.parametrize("stack", ["eager", "torchrec"])
def test_every_batch_size_is_rehearsed_equally_often(stack: str) -> None:
    batches = [d["batch"] for d in rehearsal_documents(2, 16, 0, stack)]
    counts = np.unique(batches, return_counts=True)
    assert counts[0].tolist() == [2 * size for size in BATCHES_PER_RANK]
    assert set(counts[1].tolist()) == {4}


WORKLOADS = [parse_workload(d, d["name"]) for d in rehearsal_documents(2, 3, 3)]


def test_every_kind_of_kernel_in_the_workloads_is_measured() -> None:
    wanted = {variant(k) for k in kernels_of(WORKLOADS, "cpu")}
    assert wanted == {variant(k) for k in chosen_kernels(WORKLOADS, "cpu", 400)}


def test_matrix_products_get_the_most_samples() -> None:
    counts: dict[str, int] = {}
    for kernel in chosen_kernels(WORKLOADS, "cpu", 400):
        counts[variant(kernel)] = counts.get(variant(kernel), 0) + 1
    assert max(counts, key=lambda name: counts[name]).startswith("gemm/")


def test_the_choice_is_seeded() -> None:
    assert chosen_kernels(WORKLOADS, "cpu", 100, seed=3) == chosen_kernels(WORKLOADS, "cpu", 100, seed=3)


def test_a_scaled_kernel_stays_consistent() -> None:
    kernel = Kernel.of("elementwise", operator="add", elements=100, read_bytes=800, write_bytes=400)
    twice = scaled(kernel, [2.0, 1.0, 1.0])
    assert (twice.dim("elements"), twice.dim("read_bytes"), twice.dim("write_bytes")) == (200, 1600, 800)
    assert variant(twice) == variant(kernel)
