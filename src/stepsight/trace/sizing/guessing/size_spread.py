"""How far a kernel's time may be off because its sizes were guessed.

Measured on the traces that record shapes: every kernel of one step is sized twice, by its shapes and with all
shapes taken out, and both sizes are timed by the same models. Errors within a trace mostly share a sign, so
what counts is how far the sum over a kind of guess in a trace is off: what 68 % of the sources do not pass of
|ln(sum by guessed sizes ÷ sum by recorded sizes)|. `python -m lab fit traces` makes the figures.
"""

from __future__ import annotations

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.launch_grid import is_elementwise

LEAST, COUNTED, NEIGHBOURS, PRODUCT = "spread_least", "spread_counted", "spread_neighbours", "spread_product"
COMPILED, LOOKUP, COLLECTIVE = "spread_compiled", "spread_lookup", "spread_collective"
UNKNOWN = "spread_unknown"
"""Kinds of guesses: rules by name, whose values are their spreads."""
_ROWS = ("softmax", "softmax_backward", "layer_norm", "layer_norm_backward", "nll_loss", "nll_loss_backward")
BY_FAMILY = {
    **dict.fromkeys(("batch_norm", "batch_norm_backward"), "spread_batch_norm"),
    **dict.fromkeys(("attention", "attention_backward"), "spread_attention"),
    **dict.fromkeys(_ROWS, "spread_rows"),
    **{family: f"spread_{family}" for family in ("reduce", "dropout", "scatter")},
}


def size_spread(kernel: Kernel, event: Event) -> float:
    """Standard deviation of ln(time) from the guess of a kernel's sizes alone."""
    return RULES.value(kind_of_guess(kernel, event))


def kind_of_guess(kernel: Kernel, event: Event) -> str:
    """How a kernel's sizes were guessed: the rule that says how far that may be off."""
    if kernel.family == "gemm":
        return {Sizing.NEIGHBOURS: NEIGHBOURS, Sizing.GRID: PRODUCT}.get(kernel.sizing, UNKNOWN)
    if kernel.family != "elementwise":
        return BY_FAMILY.get(kernel.family, LEAST)
    if kernel.sizing is Sizing.COUNTED and is_elementwise(event):
        return COUNTED
    if event.name.startswith("triton"):
        return COMPILED
    return LOOKUP if kernel.operator.startswith("lookup") else UNKNOWN
