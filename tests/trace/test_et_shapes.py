"""Shapes of an execution trace of one step serve all steps of the profile."""

from __future__ import annotations

from stepsight.trace.execution import repeat_shapes
from tests.trace.making import Made


def _steps(second: list[str]) -> Made:
    """Two steps: the first with the sizes of its two products, the second without."""
    made = Made()
    for number, (name, dims) in enumerate([("aten::mm", [[8, 4], [4, 2]]), ("aten::mm", [[16, 4], [4, 2]])]):
        made.op(name, 10.0 + 20 * number, 10, dims)
    for number, name in enumerate(second):
        made.op(name, 110.0 + 20 * number, 10)
    return made


def test_the_same_call_of_another_step_has_the_same_sizes():
    linked = _steps(["aten::mm", "aten::mm"]).linked()
    repeat_shapes(linked, [(0.0, 100.0), (100.0, 200.0)])
    assert [op.shapes()[0] for op in linked.ops] == [[8, 4], [16, 4], [8, 4], [16, 4]]


def test_a_step_with_other_calls_keeps_none():
    linked = _steps(["aten::mm"]).linked()
    repeat_shapes(linked, [(0.0, 100.0), (100.0, 200.0)])
    assert linked.ops[-1].shapes() == []
