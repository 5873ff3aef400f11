"""Symbolic tensors agree with torch about strides: which reshapes are views."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from stepsight.workload.operators.tensor import Tensor, broadcast, view_strides


@st.composite
def permuted(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return sizes, draw(st.permutations(range(len(sizes))))


@st.composite
def shapes_of(draw: st.DrawFn, elements: int) -> list[int]:
    sizes = []
    while elements > 1:
        factor = draw(st.sampled_from([d for d in range(1, elements + 1) if elements % d == 0]))
        sizes.append(factor)
        elements //= factor
        if len(sizes) == 5:
            sizes.append(elements)
            break
    return sizes or [1]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_reshape_is_a_view_exactly_where_torch_says_so(data: st.DataObject) -> None:
    sizes, order = data.draw(permuted())
    real = torch.empty(sizes).permute(order)
    mine = Tensor.new(sizes)
    mine = mine.alias(tuple(sizes[i] for i in order), tuple(mine.strides[i] for i in order))
    target = data.draw(shapes_of(real.numel()))
    try:
        expected = tuple(real.view(target).stride())
    except RuntimeError:
        expected = None
    found = view_strides(mine, tuple(target))
    if expected is None or found is None:
        assert found == expected
    else:
        assert [s for s, n in zip(found, target, strict=True) if n > 1] == [
            s for s, n in zip(expected, target, strict=True) if n > 1
        ]
    assert mine.is_contiguous() == real.is_contiguous()


def test_operands_broadcast_from_the_right() -> None:
    assert broadcast((3, 1, 5), (4, 1)) == (3, 4, 5)
    assert broadcast((), (2, 3)) == (2, 3)
