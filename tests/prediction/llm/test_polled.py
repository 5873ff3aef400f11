"""Pipelines whose hosts poll for each other's messages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.prediction.llm.polled import StagePasses, polled_ends_us

POLL_US = 1e5
NOTHING = StagePasses((0.0, 0.0), (1.0, 1.0))


def ends(stages: int, micro_batches: int, one: StagePasses = NOTHING) -> float:
    return max(polled_ends_us([one] * stages, micro_batches, [0.0] * stages, POLL_US))


@pytest.mark.parametrize(("stages", "sleeps"), [(2, 6), (4, 12), (8, 12)])
def test_a_micro_batch_costs_two_sleeps_a_tensor(stages: int, sleeps: int) -> None:
    """Two tensors forward and one back: six of them at a stage between two others, three at an end."""
    more = (ends(stages, 96) - ends(stages, 64)) / 32
    assert more == pytest.approx(sleeps * POLL_US, rel=0.01)


def test_short_passes_hide_behind_the_sleeps() -> None:
    short = StagePasses((1e3, 1e3), (0.3 * POLL_US, 0.3 * POLL_US))
    assert ends(2, 64, short) < 1.15 * ends(2, 64)


def test_long_passes_count_in_whole_sleeps() -> None:
    long = StagePasses((1e3, 1e3), (20 * POLL_US, 20 * POLL_US))
    assert ends(2, 8, long) > 8 * 40 * POLL_US


def test_many_micro_batches_keep_the_pace_of_the_walked_ones() -> None:
    assert ends(4, 1024) / 1024 == pytest.approx(ends(4, 256) / 256, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 9),
    st.integers(1, 20),
    st.lists(st.floats(0, 3e5), min_size=36, max_size=36),
    st.floats(1e3, 3e5),
)
def test_a_polled_pipeline_is_never_faster_than_its_busiest_stage(
    stages: int, m: int, times: list[float], poll_us: float
) -> None:
    passes = [StagePasses((a, b), (c, d)) for a, b, c, d in zip(*[iter(times)] * 4, strict=True)][:stages]
    found = polled_ends_us(passes, m, [0.0] * stages, poll_us)
    for one in passes:
        assert max(found) >= m * max(sum(one.host_us), sum(one.device_us)) * (1 - 1e-9)


def test_fewer_micro_batches_than_stages_end() -> None:
    assert ends(8, 3) > 0
