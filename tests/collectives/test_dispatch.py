"""Tokens to experts: once to a node, once to a rank."""

from __future__ import annotations

import pytest

from stepsight.collectives.models import dispatched
from stepsight.platform.load import Platform, load_platform
from stepsight.program.job import Copies


@pytest.fixture(scope="module")
def platform() -> Platform:
    return load_platform("8x8xH100-SXM-80G-400G")


def test_a_row_reaches_no_more_places_than_it_has_copies_or_there_are() -> None:
    for places in (1, 2, 8, 64, 512):
        for count in (1, 2, 8):
            assert 1.0 <= Copies(count).reached(places) <= min(places, count)


def test_groups_limit_how_many_nodes_a_row_reaches() -> None:
    """DeepSeek-V3: 8 of 256 experts, in 4 of 8 groups."""
    free, limited = Copies(8), Copies(8, groups=8, chosen=4)
    assert limited.reached(8) < 4 < free.reached(8)
    assert limited.reached(4) == free.reached(4)
    assert limited.reached(64) < free.reached(64)


def test_inside_a_node_a_row_goes_once_to_each_rank(platform: Platform) -> None:
    ranks, copies = tuple(range(8)), Copies(8)
    rows = platform.collectives.estimate("all_to_all", [1e8 / 8 * copies.reached(8)], ranks)[0]
    assert dispatched(platform.collectives, 1e8, copies, ranks).time_us == rows.time_us


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_over_nodes_never_slower_than_every_copy_by_itself(platform: Platform, nodes: int) -> None:
    ranks = tuple(range(8 * nodes))
    each = platform.collectives.estimate("all_to_all", [1e9], ranks)[0].time_us
    once = dispatched(platform.collectives, 1e9, Copies(8), ranks).time_us
    limited = dispatched(platform.collectives, 1e9, Copies(8, groups=8, chosen=4), ranks).time_us
    assert limited <= once < each
