"""How far a kernel's time may be off because its sizes were guessed.

Measured on 23 traces that record shapes (V100, A100, H100, B200, MI250, MI300; transformers, DLRMs
and CNNs): every kernel of one step was sized twice, by its shapes and with all shapes taken out, and
both sizes were timed by the same models. Errors within a trace mostly share a sign, so what counts is
how far the sum over a kind of guess in a trace is off: 1.48 times the median, over traces, of
|ln(sum by guessed sizes ÷ sum by recorded sizes)|, which is a standard deviation where errors are
normal. They are not: one trace in four is off by more than twice as much. The figures stand in `trace.rules`.
"""

from __future__ import annotations

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.launch_grid import is_elementwise

LEAST = RULES.value("spread_least")
COUNTED = RULES.value("spread_counted")
NEIGHBOURS = RULES.value("spread_neighbours")
PRODUCT = RULES.value("spread_product")
COMPILED = RULES.value("spread_compiled")
LOOKUP = RULES.value("spread_lookup")
COLLECTIVE = RULES.value("spread_collective")
UNKNOWN = RULES.value("spread_unknown")
_ROWS = ("softmax", "softmax_backward", "layer_norm", "layer_norm_backward", "nll_loss", "nll_loss_backward")
BY_FAMILY = {
    **dict.fromkeys(("batch_norm", "batch_norm_backward"), RULES.value("spread_batch_norm")),
    **dict.fromkeys(("attention", "attention_backward"), RULES.value("spread_attention")),
    **dict.fromkeys(_ROWS, RULES.value("spread_rows")),
    **{family: RULES.value(f"spread_{family}") for family in ("reduce", "dropout", "scatter")},
}


def size_spread(kernel: Kernel, event: Event) -> float:
    """Standard deviation of ln(time) from the guess of a kernel's sizes alone."""
    if kernel.family == "gemm":
        return NEIGHBOURS if kernel.sizing is Sizing.NEIGHBOURS else PRODUCT
    if kernel.family != "elementwise":
        return BY_FAMILY.get(kernel.family, LEAST)
    if kernel.sizing is Sizing.COUNTED and is_elementwise(event):
        return COUNTED
    if event.name.startswith("triton"):
        return COMPILED
    return LOOKUP if kernel.name.startswith("lookup") else UNKNOWN
