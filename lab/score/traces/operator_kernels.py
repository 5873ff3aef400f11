"""Which kernels one library call launches: the map that program builders rely on.

The builders of `workload/` emit these kernels for these calls. Here the map is checked
against what traces show was really launched.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from stepsight.trace.linking.launches import Launch
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.facts import Facts
from stepsight.trace.sizing.kernel_map import kernel_of

_STREAMING = frozenset({"elementwise", "transpose", "copy_d2d", "fill", "gather", "copy_h2d", "copy_d2h"})
_ONE_PASS = (
    "_to_copy", "abs", "add", "add_", "addcdiv_", "addcmul_", "binary_cross_entropy_backward", "clamp",
    "clamp_min", "clamp_min_", "div", "div_", "eq", "exp", "ge", "gelu", "gelu_backward", "gt", "index",
    "index_select", "le", "log", "log_", "logical_and", "logical_and_", "logical_not", "lt", "masked_fill",
    "masked_fill_", "mse_loss_backward", "mul", "mul_", "native_dropout_backward", "ne", "neg", "pow",
    "reciprocal", "relu", "rsqrt", "sigmoid", "sigmoid_backward", "silu", "silu_backward", "sqrt", "sub",
    "sub_", "tanh", "tanh_backward", "threshold_backward", "where",
)  # fmt: skip

EXPECTED: dict[str, tuple[str, ...]] = {
    **{f"aten::{name}": ("elementwise",) for name in _ONE_PASS},
    "aten::mm": ("gemm",), "aten::addmm": ("gemm",), "aten::bmm": ("gemm",), "aten::baddbmm": ("gemm",),
    "aten::_softmax": ("softmax",), "aten::_log_softmax": ("softmax",),
    "aten::_softmax_backward_data": ("softmax_backward",),
    "aten::_log_softmax_backward_data": ("softmax_backward",),
    "aten::native_layer_norm": ("layer_norm",),
    "aten::native_layer_norm_backward": ("layer_norm_backward", "reduce"),
    "aten::native_dropout": ("dropout",),
    "aten::cat": ("concat",), "aten::sum": ("reduce",), "aten::mean": ("reduce",),
    "aten::copy_": ("elementwise",), "aten::fill_": ("fill",), "aten::zero_": ("fill",),
    "aten::embedding": ("gather",), "aten::nll_loss_forward": ("nll_loss",),
    "aten::nll_loss_backward": ("nll_loss_backward",),
    "aten::_foreach_add_": ("optimizer",), "aten::_foreach_mul_": ("optimizer",),
    "aten::_foreach_addcdiv_": ("optimizer",), "aten::_foreach_addcmul_": ("optimizer",),
    "aten::_foreach_sqrt": ("optimizer",), "aten::_foreach_lerp_": ("optimizer",),
    "aten::_foreach_div_": ("optimizer",),
}  # fmt: skip
"""Families by call, in order. Split-K tails and workspace fills of a GEMM are not counted."""

_SEVERAL_ALLOWED = frozenset({"optimizer", "concat"})
"""Kernels whose argument space is limited: long tensor lists take several launches."""


@dataclass(slots=True)
class Agreement:
    """How many calls launched what the map says, and what the others launched."""

    agreed: int = 0
    checked: int = 0
    others: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        return self.agreed / self.checked if self.checked else 1.0

    def add(self, other: Agreement) -> None:
        self.agreed += other.agreed
        self.checked += other.checked
        self.others.update(other.others)


def check_operators(facts: Facts) -> Agreement:
    """Compare every known call of a trace that launched kernels with the map."""
    linked = facts.linked
    by_op: dict[int, list[Launch]] = defaultdict(list)
    for launch in linked.launches:
        by_op[launch.op].append(launch)
    result = Agreement()
    for op, launches in by_op.items():
        if op < 0:
            continue
        expected = EXPECTED.get(linked.ops[op].name)
        if expected is None:
            continue
        kernels = [(x, e) for x in launches for e in x.gpu]
        families = tuple(kernel_of(facts, x, e, "compute")[0].family for x, e in kernels if not _is_side(e))
        streams = {e.args.stream for _, e in kernels}
        result.checked += 1
        if _alike(families, expected) and len(streams) == 1:
            result.agreed += 1
        else:
            result.others[linked.ops[op].name, families] += 1
    return result


def _is_side(event: Event) -> bool:
    return (
        "splitKreduce" in event.name
        or "computeOffsets" in event.name
        or event.name.startswith("Memset")
        or "epilogue::impl" in event.name
    )


def _alike(families: tuple[str, ...], expected: tuple[str, ...]) -> bool:
    if expected[0] in _SEVERAL_ALLOWED and families and len(set(families)) == 1:
        families = families[:1]
    return len(families) == len(expected) and all(map(_same, families, expected))


def _same(found: str, wanted: str) -> bool:
    return found == wanted or (found in _STREAMING and wanted in _STREAMING)
