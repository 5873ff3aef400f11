"""Pipeline schedules: every pass once, in an order that no stage waits for for ever."""

from __future__ import annotations

import pytest

from stepsight.workload.llm.pipeline import Exchange, Item, exchanges, orders

CASES = [("afab", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero_bubble", 1)]


@pytest.mark.parametrize(("schedule", "virtual"), CASES)
def test_every_pass_of_every_micro_batch_runs_once(schedule: str, virtual: int) -> None:
    for stage, items in enumerate(orders(schedule, 4, 8, virtual)):
        kinds = "FBW" if schedule == "zero_bubble" else "FB"
        pieces = range(stage, 4 * virtual, 4)
        assert len(items) == len(set(items)) == 8 * virtual * len(kinds)
        assert set(items) == {Item(k, p, m) for k in kinds for p in pieces for m in range(8)}


@pytest.mark.parametrize(("schedule", "virtual"), CASES)
def test_both_ends_of_a_boundary_see_its_messages_in_the_same_order(schedule: str, virtual: int) -> None:
    lists = exchanges(orders(schedule, 4, 8, virtual), 4 * virtual)
    for s in range(4):
        for t in range(4):
            between = [
                [i for i in items if isinstance(i, Exchange) and (i.source, i.target) == (s, t)]
                for items in (lists[s], lists[t])
            ]
            assert between[0] == between[1]


def test_1f1b_keeps_no_more_micro_batches_than_stages_behind_it() -> None:
    for stage, items in enumerate(orders("1f1b", 4, 16)):
        open_, most = 0, 0
        for item in items:
            open_ += 1 if item.kind == "F" else -1
            most = max(most, open_)
        assert most == 4 - stage


@pytest.mark.parametrize("schedule", ["afab", "1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("stages", [2, 3, 5, 6, 8])
def test_no_stage_waits_for_itself(schedule: str, stages: int) -> None:
    """Whatever the micro-batches; an interleaved pipeline takes them in multiples of its stages."""
    pieces = (2, 3, 4) if schedule == "interleaved" else (1,)
    batches = range(stages, 4 * stages, stages) if schedule == "interleaved" else range(1, 3 * stages + 2)
    for virtual in pieces:
        for m in batches:
            lists = exchanges(orders(schedule, stages, m, virtual), stages * virtual)
            assert len(lists) == stages
