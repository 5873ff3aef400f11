"""What inductor does to library calls before it fuses the rest: bias, memory format, padding.

Rules of torch/_inductor (torch 2.4 to 2.13, default mode): ``lowering`` peels the bias off a convolution,
since cuDNN is slower with it; ``graph.decide_layout_opt`` runs a graph's convolutions in channels_last;
``pad_mm`` aligns the rows of large products.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from stepsight.capturing.calls import CallRecord, Record
from stepsight.program.aten.call import AtenCall, TensorFact
from stepsight.program.job import Kernel
from stepsight.program.variants import Role

CONVOLUTION, BACKWARD = "convolution", "convolution_backward"
CALLS_PER_CONVOLUTION = 300
"""Graphs with more calls than this for each convolution keep their format."""
SMALL_CHANNELS = 64
SLOWER = {"grouped": 1.358, "small": 0.783, "narrowing": 0.725, "other": 0.823}
"""Times in channels_last over those by channel that inductor weighs convolutions of inference with."""
RAW = 1 << 40
"""Added to a convolution's mark: the number of the memory that holds its result without bias."""


def as_compiled(records: Sequence[Record]) -> list[Record]:
    """The records with convolutions of compiled graphs as inductor calls them. The bias becomes a call of its
    own that can be fused; its mark is the convolution's with a minus sign."""
    last = set(_in_channels_last(records))
    return [made for record in records for made in _convolutions(record, last)]


def _convolutions(record: Record, last: set[int]) -> Iterator[Record]:
    if not isinstance(record, CallRecord) or not record.graph or not _is_convolution(record.call):
        yield record
        return
    call = _by_pixel(record.call) if record.graph in last else record.call
    bias = call.arguments.get("bias")
    if call.name != CONVOLUTION or not isinstance(bias, TensorFact):
        yield replace(record, call=call)
        return
    out = call.outputs[0]
    raw = replace(out, storage=RAW + record.mark, offset=0)
    bare = replace(
        call, outputs=(raw,), inputs=tuple(t for t in call.inputs if t is not bias),
        arguments={**call.arguments, "bias": None},
    )  # fmt: skip
    yield replace(record, call=bare)
    added = AtenCall("add", (raw, bias), (out,), pointwise=True, node=call.node)
    yield replace(record, mark=-record.mark, call=added)


def _is_convolution(call: AtenCall) -> bool:
    return call.name in (CONVOLUTION, BACKWARD) and isinstance(call.arguments.get("weight"), TensorFact)


def _in_channels_last(records: Iterable[Record]) -> Iterator[int]:
    """The graphs whose convolutions run in channels_last."""
    calls: dict[int, list[AtenCall]] = defaultdict(list)
    for record in records:
        if isinstance(record, CallRecord) and record.graph:
            calls[record.graph].append(record.call)
    for graph, own in calls.items():
        forward = [c for c in own if not c.node]
        found = [c for c in forward if c.name == CONVOLUTION and len(c.arguments["weight"].shape) == 4]
        if found and len(forward) < CALLS_PER_CONVOLUTION * len(found):
            inference = len(forward) == len(own)
            if _gains(found) if inference else _keeps(found):
                yield graph


def _gains(found: Sequence[AtenCall]) -> bool:
    """Of inference: whether the weighted FLOPs are fewer."""
    before = after = 0.0
    for call in found:
        flops = float(prod(call.outputs[0].shape) * prod(call.arguments["weight"].shape[1:]))
        before, after = before + flops, after + SLOWER[_kind(call)] * flops
    return after <= before


def _keeps(found: Sequence[AtenCall]) -> bool:
    """Of training: no groups of several channels, no narrowing, and not small channels alone."""
    kinds = {_kind(c) for c in found}
    shapes = [c.arguments["weight"].shape for c in found]
    return not ("grouped" in kinds or any(map(_narrows, shapes)) or all(map(_is_small, shapes)))


def _kind(call: AtenCall) -> str:
    shape = call.arguments["weight"].shape
    if call.get("groups", 1) > 1 and shape[1] > 1:
        return "grouped"
    if _is_small(shape):
        return "small"
    return "narrowing" if _narrows(shape) else "other"


def _is_small(shape: Sequence[int]) -> bool:
    return max(shape[:2]) <= SMALL_CHANNELS


def _narrows(shape: Sequence[int]) -> bool:
    return shape[0] * 2 <= shape[1] and shape[2] > 1


def _by_pixel(call: AtenCall) -> AtenCall:
    """The call with its images and filters in channels_last."""

    def laid(value: Any) -> Any:
        if not isinstance(value, TensorFact) or len(value.shape) != 4:
            return value
        return replace(value, strides=_channels_last(value.shape))

    arguments = {name: laid(value) for name, value in call.arguments.items()}
    inputs, outputs = (tuple(map(laid, given)) for given in (call.inputs, call.outputs))
    return replace(call, inputs=inputs, outputs=outputs, arguments=arguments)


def _channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    _, c, h, w = shape
    return (c * h * w, 1, c * w, c)


ALIGNED = 8
"""Half-precision values in 16 bytes, to which inductor pads matrices (``shape_padding``)."""
COMPUTE_BOUND = 150.0
"""Multiplications per value moved from which it does: peak over bandwidth, about that of an A100."""


def padded(kernel: Kernel) -> tuple[Kernel, ...]:
    """A product whose rows are not aligned as inductor runs it: copies into padded matrices, then the product
    of those. Its result is read in place."""
    d = dict(kernel.dims)
    if kernel.family != "gemm" or kernel.dtype not in ("fp16", "bf16") or d.get("batch", 1) != 1:
        return (kernel,)
    m, n, k = d["m"], d["n"], d["k"]
    if m * n * k < COMPUTE_BOUND * (m * k + k * n + m * n):
        return (kernel,)
    rows = "m" if kernel.kind.role is Role.WGRAD else "k"
    uneven = [key for key in ("n", rows) if d[key] % ALIGNED]
    if not uneven:
        return (kernel,)
    for key in uneven:
        d[key] += -d[key] % ALIGNED
    a, b = d["m"] * d["k"], d["k"] * d["n"]
    copied = (a if rows in uneven else 0.0) + (b if "n" in uneven or "k" in uneven else 0.0)
    copy = Kernel.of(
        "elementwise", kernel.dtype, operator="constant_pad_nd", elements=copied, read_bytes=2 * copied,
        write_bytes=2 * copied,
    )  # fmt: skip
    return (copy, replace(kernel, dims=tuple(d.items())))
