"""What is measured covers what workloads are made of."""

from __future__ import annotations

from stepsight.calibrate.bench.kernel_bench import chosen_kernels, kernels_of, rehearsal_documents, scaled
from stepsight.kernels.measured import variant
from stepsight.program.job import Kernel
from stepsight.workload.files import parse_workload

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
