"""Convolutions and batch norms where a trace recorded no shapes.

A batch norm launches one block a channel, and the activation beside it counts the image's
elements; together they give the pixels. What a convolution reduces over shows in the size
of its weight, which DDP scales into its bucket right behind the convolution's backward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from stepsight.program.job import Kernel, Sizing
from stepsight.trace.linking.launches import NO_OP, Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.launch_grid import elements_by_grid, elements_per_block, is_elementwise

_NORM = re.compile(r"bn_(fw|bw)|batch_norm")
_MAIN = re.compile(
    r"scudnn|sgemm|gemm|dgrad_engine|wgrad_alg|implicit_convolve|dgrad2d|wgrad2d|xmma|winograd_\d+x\d+",
    re.IGNORECASE,
)
_HELPER = re.compile(r"[oO]ffsets|reduce|winograd\w*(Data|Filter|Output|Delta)|scalePacked|transpose", re.I)
_SCALED = "reducer::mul_out"
"""DDP's operator that scales a gradient into its bucket."""
_REACH = 12
_FEWEST_BLOCKS = int(RULES.value("fewest_blocks"))


def image_elements(linked: LinkedTrace, launch: Launch) -> float:
    """Elements of the image that a batch norm works on, by the activation beside it; else zero."""
    backward = "bw" in launch.gpu[0].name or "backward" in launch.gpu[0].name.lower()
    near = linked.before(launch, _REACH) if backward else linked.after(launch, _REACH)
    return next((elements_by_grid(x.gpu[0]) for x in near if _is_activation(linked, x)), 0.0)


def is_norm(event: Event) -> bool:
    return _names_norm(event.name)


@lru_cache(maxsize=8192)
def _names_norm(kernel: str) -> bool:
    return bool(_NORM.search(kernel))


def conv_by_neighbours(
    linked: LinkedTrace, weights: Mapping[int, float], launch: Launch, dtype: str
) -> Kernel | None:
    """The product that a convolution amounts to: pixels × channels out × weights of one."""
    event = launch.gpu[0]
    if not _is_main(event.name):
        return None
    chain = [e.name for e in linked.chain(launch.op)]
    if not any("onvolution" in name for name in chain):
        return None
    backward = any("ackward" in name for name in chain)
    near = linked.before(launch, _REACH) if backward else linked.after(launch, _REACH)
    norm = next((x for x in near if is_norm(x.gpu[0]) and x.gpu[0].grid()), None)
    weight = weights.get(_sequence(linked, launch), 0.0)
    image = image_elements(linked, norm) if norm is not None else 0.0
    if norm is None or not weight or not image:
        return None
    channels = norm.gpu[0].grid()[0]
    return Kernel.of(
        "gemm", dtype, operator="convolution", sizing=Sizing.NEIGHBOURS, batch=1,
        m=max(image / channels, 1.0), n=channels, k=max(weight / channels / _saved(event), 1.0),
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _is_main(kernel: str) -> bool:
    return bool(_MAIN.search(kernel)) and not _HELPER.search(kernel)


def _saved(event: Event) -> float:
    """How many times fewer products Winograd's algorithm takes for 3×3 weights: its batched GEMM has
    36 parts for tiles of 4×4 pixels, 16 for tiles of 2×2."""
    if "winograd" in event.name:
        return 2.25
    depth = (*event.grid(), 1, 1, 1)[2]
    return {36: 4.0, 16: 2.25}.get(depth, 1.0) if "sgemm" in event.name else 1.0


def _is_activation(linked: LinkedTrace, launch: Launch) -> bool:
    event = launch.gpu[0]
    large = elements_by_grid(event) >= _FEWEST_BLOCKS * elements_per_block(event)
    return is_elementwise(event) and large and not _is_scaled(linked, launch)


def _is_scaled(linked: LinkedTrace, launch: Launch) -> bool:
    return any(_SCALED in e.name for e in linked.chain(launch.op))


def weights_by_sequence(linked: LinkedTrace) -> dict[int, float]:
    """Elements of the weights, by the sequence number of their convolution."""
    found: dict[int, float] = {}
    if not any("ConvolutionBackward" in name for name in linked.op_names):
        return found
    for launch in linked.launches:
        if not any("ConvolutionBackward" in e.name for e in linked.chain(launch.op)):
            continue
        scaled = next((x for x in linked.after(launch, _REACH) if _is_scaled(linked, x)), None)
        if scaled is not None:
            found.setdefault(_sequence(linked, launch), elements_by_grid(scaled.gpu[0]))
    return found


def _sequence(linked: LinkedTrace, launch: Launch) -> int:
    if launch.op == NO_OP:
        return -1
    return max((e.args.sequence for e in linked.chain(launch.op)), default=-1)
