"""Sizes that a kernel's own name spells out where a trace recorded no shapes.

Template parameters are compiled in: a softmax that keeps a row in a warp's registers names the
row's length, flash attention the head's width and the queries of a block.
"""

from __future__ import annotations

import re
from math import prod

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.linking.launches import Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.launch_grid import elements_by_grid, elements_per_block, is_elementwise

_WARP_SOFTMAX = re.compile(r"softmax_warp_(forward|backward)<(?:[^<>]*?,)?\s*(\d+)\s*[,>]")
"""The first number among the parameters is the binary logarithm of the row's length."""
_TWO_ROWS = 128
"""Rows of up to this many elements go two to a warp (PyTorch's softmax_warp kernels)."""
_FLASH = re.compile(
    r"Flash_(fwd|bwd)_kernel_traits<(\d+), (\d+), (\d+)[^>]*(?:>[^<>]*|<[^<>]*>)*?>\s*>?,\s*"
    r"(?:true|false|\(bool\)[01]),\s*(true|false|\(bool\)[01])"
)
"""Head width, queries a block, keys a block; behind the traits whether it drops out, whether it is causal."""
_REACH = 3
"""Kernels on either side of a row kernel that may stream the same matrix."""
_SHORTEST, _LONGEST = 16, 65536
"""Rows that a row kernel may have."""
_FEWEST_BLOCKS = int(RULES.value("fewest_blocks"))


def softmax_by_name(event: Event, dtype: str, name: str) -> Kernel | None:
    """A softmax whose rows live in registers."""
    found = _WARP_SOFTMAX.search(event.name)
    if found is None or not event.grid():
        return None
    cols = 2.0 ** int(found[2])
    warps = (*event.block(), 1, 1)[1]
    rows = float(prod(event.grid()) * warps * (2 if cols <= _TWO_ROWS else 1))
    family = "softmax_backward" if found[1] == "backward" else "softmax"
    return Kernel.of(family, dtype, operator=name, sizing=Sizing.NAMED, rows=rows, cols=cols)


def attention_by_name(event: Event, dtype: str, name: str) -> Kernel | None:
    """Flash attention: a block takes some queries (backward: keys) of one head of one sample. Keys are
    taken to be as many as queries."""
    found = _FLASH.search(event.name)
    if found is None or len(event.grid()) < 3:
        return None
    forward = found[1] == "fwd"
    blocks, batch, heads = event.grid()[:3]
    length = float(blocks * int(found[3] if forward else found[4]))
    causal = float(found[5] in ("true", "(bool)1"))
    return Kernel.of(
        "attention" if forward else "attention_backward", dtype, operator=name, sizing=Sizing.NAMED,
        batch=batch, heads=heads, kv_heads=heads, q=length, kv=length, head_dim=float(found[2]),
        causal=causal,
    )  # fmt: skip


def row_length(linked: LinkedTrace, launch: Launch) -> float:
    """Elements a row of a kernel that takes a block a row, by the element-wise kernels beside it, which
    stream the same matrix; zero where none does."""
    rows = prod(launch.gpu[0].grid() or (1,))
    before, after = linked.before(launch, _REACH), linked.after(launch, _REACH)
    for near in (x for pair in zip(before, after, strict=False) for x in pair):
        event = near.gpu[0]
        elements = elements_by_grid(event)
        if not is_elementwise(event) or elements < _FEWEST_BLOCKS * elements_per_block(event):
            continue
        # The grid covers less than a block more than the matrix.
        length = elements // rows
        slack = elements_per_block(event) / rows
        if _SHORTEST <= length <= _LONGEST and elements / rows - length <= slack:
            return float(length)
    return 0.0
