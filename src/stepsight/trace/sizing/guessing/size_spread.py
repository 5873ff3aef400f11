"""How far a kernel's time may be off because its sizes were guessed.

Measured on 23 traces that record shapes (V100, A100, H100, B200, MI250, MI300; transformers, DLRMs
and CNNs): every kernel of one step was sized twice, by its shapes and with all shapes taken out, and
both sizes were timed by the same models. Errors within a trace mostly share a sign, so what counts is
how far the sum over a kind of guess in a trace is off: 1.48 times the median, over traces, of
|ln(sum by guessed sizes ÷ sum by recorded sizes)|, which is a standard deviation where errors are
normal. They are not: one trace in four is off by more than twice as much.
"""

from __future__ import annotations

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.reading.events import Event
from stepsight.trace.sizing.launch_grid import is_elementwise

LEAST = 0.1
"""No guess is better than this, although most element counts, concatenations and optimizers are exact."""
COUNTED = 0.16
"""PyTorch's element-wise kernels, whose grid counts elements; how many inputs they read does not show
(22 traces)."""
NEIGHBOURS = 0.19
"""Products sized by the kernels beside them (4 traces)."""
PRODUCT = 0.5
"""Products sized by their grid, the reduced size mostly unknown (16 traces; single ones are off by e² and
more both ways)."""
COMPILED = 0.93
"""Compiled kernels: their inputs and loops do not show (5 traces)."""
LOOKUP = 1.7
"""Lookups: how many rows a bag has does not show (1 trace)."""
COLLECTIVE = 0.93
"""Collectives sized by the kernels around them (7 runs: a step's sum was 0.3 to 3.9 times the true one)."""
UNKNOWN = 2.2
"""A kernel that nothing is known of but its grid, taken to touch one element a thread (23 traces, nearly
always too short: convolutions, attention)."""
BY_FAMILY = {
    "batch_norm": 0.15, "batch_norm_backward": 0.15, "reduce": 0.22, "attention": 0.24,
    "attention_backward": 0.24, "softmax": 0.28, "softmax_backward": 0.28, "layer_norm": 0.28,
    "layer_norm_backward": 0.28, "nll_loss": 0.28, "nll_loss_backward": 0.28, "dropout": 0.4, "scatter": 0.3,
}  # fmt: skip
"""3 to 20 traces a family, dropout and scatter one. For softmax, layer norm and losses the figure of rows
whose length nothing tells (6 traces); where a neighbour or the name does, half are within 3 %."""


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
