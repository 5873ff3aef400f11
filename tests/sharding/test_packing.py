import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.sharding.rules import Rules
from stepsight.sharding.search import search
from stepsight.sharding.starts import packed, place
from stepsight.tables.plan import COLUMN_WISE, ROW_WISE, TABLE_WISE
from stepsight.tables.table import Table

SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=7)


@settings(deadline=None, max_examples=80)
@given(sizes=SIZES, bins=st.integers(1, 3), room=st.integers(5, 40))
def test_a_packing_is_found_exactly_where_one_exists(sizes, bins, room):
    exists = any(
        max(sum(s for s, b in zip(sizes, where, strict=True) if b == r) for r in range(bins)) <= room
        for where in itertools.product(range(bins), repeat=len(sizes))
    )
    found = place(sizes, [float(room)] * bins)
    assert (found is not None) == exists
    if found is not None:
        held = np.bincount(found, weights=sizes, minlength=bins)
        assert held.max() <= room


def test_a_packing_that_greedy_placement_misses(on_paper):
    """5, 4, 3, 3, 3 into two ranks of 9: only {5, 4} and {3, 3, 3} fit."""
    tables = [Table(f"t{i}", 10_000 * size, 32, 1.0) for i, size in enumerate((5, 4, 3, 3, 3))]
    room = 9 * 10_000 * 32 * 4.0
    pricer = on_paper(tables, 2)
    draft = packed(pricer.costs, Rules(room, (TABLE_WISE,)))
    assert draft is not None
    assert draft.plan("packed").memory_bytes(tables).max() <= room
    found = search(pricer, Rules(room, (TABLE_WISE,)), plans=100)
    assert found.fits
    found.plan.check(tables)


@pytest.mark.parametrize("kind", [COLUMN_WISE, ROW_WISE])
def test_tables_are_cut_where_whole_ones_cannot_be_packed(on_paper, kind):
    tables = [Table(f"t{i}", 100_000, 128, 2.0) for i in range(3)]
    room = 1.6 * tables[0].weight_bytes
    pricer = on_paper(tables, 2)
    assert packed(pricer.costs, Rules(room, (TABLE_WISE,))) is None
    draft = packed(pricer.costs, Rules(room, (TABLE_WISE, kind)))
    assert draft is not None
    plan = draft.plan("packed")
    plan.check(tables)
    assert plan.memory_bytes(tables).max() <= room
