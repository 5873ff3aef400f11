"""Gradient buckets: how they are filled and when they are reduced."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stepsight.program.job import COMPUTE, Wait
from stepsight.workload.files import load_workload
from stepsight.workload.step import FIRST_BUCKET_BYTES, MB, assign_buckets

EXAMPLES = Path(__file__).parents[1] / "data" / "workloads"


def test_a_bucket_is_closed_once_it_reaches_its_limit() -> None:
    assert assign_buckets([3, 3, 4, 4, 10, 1], first_bytes=5, cap_bytes=8) == [[0, 1], [2, 3], [4], [5]]


@given(st.lists(st.integers(1, 100), min_size=1), st.integers(1, 50), st.integers(1, 200))
def test_every_gradient_is_in_one_bucket_in_order(sizes: list[int], first: int, cap: int) -> None:
    buckets = assign_buckets(sizes, first, cap)
    assert [i for bucket in buckets for i in bucket] == list(range(len(sizes)))
    for n, bucket in enumerate(buckets):
        assert sum(sizes[i] for i in bucket[:-1]) < (first if n == 0 else cap)


def test_the_first_bucket_is_small_and_reduced_early() -> None:
    ops = load_workload(EXAMPLES / "bert.toml").job().programs[0].ops
    reduced = [op.collective.bytes for op in ops if op.collective is not None]
    parameters = sum(reduced) / 4
    assert 100e6 < parameters < 120e6  # BERT-base
    first_backward = next(i for i, op in enumerate(ops) if op.phase == "backward")
    first = next(i for i, op in enumerate(ops) if op.collective is not None)
    assert first - first_backward < 40
    assert reduced[0] >= FIRST_BUCKET_BYTES
    assert all(size >= 25 * MB for size in reduced[1:-1])


def test_every_bucket_is_awaited_after_the_backward_pass() -> None:
    ops = load_workload(EXAMPLES / "gpt2.toml").job().programs[0].ops
    started = [i for i, op in enumerate(ops) if op.collective is not None]
    awaited = [w.on for op in ops for w in op.waits if w.waiter == COMPUTE]
    assert awaited == started
    assert Wait("comm", COMPUTE) in ops[started[0]].waits
