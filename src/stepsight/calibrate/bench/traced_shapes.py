"""Kernels that no workload builder emits on this device but traces of other models hold.

Convolutions, pooling, batch norms, fused attention, sorts and multi-tensor updates, at random
sizes that models of images and of language have.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepsight.program.job import Kernel

FEW = 14
"""Kernels of each kind: enough for a smooth efficiency (`kernels.measured.FEWEST`)."""
MOST_FLOPS, MOST_ELEMENTS = 4e9, 8e6
"""A kernel takes tens of milliseconds of one CPU core at most."""

Draw = Callable[[np.random.Generator], Kernel]


def traced_kernels(seed: int = 0) -> list[Kernel]:
    """``FEW`` kernels of every kind, the same for the same seed."""
    rng = np.random.default_rng([seed, 17])
    return [draw(rng) for draw in _DRAWS for _ in range(FEW)]


def _between(rng: np.random.Generator, low: float, high: float) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def _conv(family: str) -> Draw:
    def draw(rng: np.random.Generator) -> Kernel:
        while True:
            kernel, size = int(rng.choice([1, 3, 5, 7])), _between(rng, 7, 112)
            channels_in, channels_out = 8 * _between(rng, 1, 48), 8 * _between(rng, 1, 48)
            batch, stride = _between(rng, 1, 16), int(rng.choice([1, 2]))
            flops = 2 * batch * (size / stride) ** 2 * channels_in * channels_out * kernel**2
            if flops <= MOST_FLOPS:
                return Kernel.of(
                    family, batch=batch, c_in=channels_in, c_out=channels_out, h=size, w=size, kh=kernel,
                    kw=kernel, stride=stride, padding=kernel // 2, groups=1,
                )  # fmt: skip

    return draw


def _rows_of_channels(family: str) -> Draw:
    def draw(rng: np.random.Generator) -> Kernel:
        channels = 8 * _between(rng, 1, 64)
        return Kernel.of(family, rows=channels, cols=_between(rng, 64, MOST_ELEMENTS / channels))

    return draw


def _pool(rng: np.random.Generator) -> Kernel:
    written = _between(rng, 4e3, MOST_ELEMENTS / 4)
    return Kernel.of("pool", operator="max_pool2d", elements=4 * written, read_bytes=16 * written,
                     write_bytes=4 * written)  # fmt: skip


def _attention(family: str) -> Draw:
    def draw(rng: np.random.Generator) -> Kernel:
        length, heads = 16 * _between(rng, 1, 32), _between(rng, 1, 16)
        return Kernel.of(
            family, batch=_between(rng, 1, 8), heads=heads, kv_heads=heads, q=length, kv=length,
            head_dim=int(rng.choice([32, 64, 128])), causal=int(rng.integers(2)),
        )  # fmt: skip

    return draw


def _sort(rng: np.random.Generator) -> Kernel:
    return Kernel.of("sort", "int64", elements=_between(rng, 1e3, 4e5))


def _update(rng: np.random.Generator) -> Kernel:
    elements, tensors = _between(rng, 1e4, MOST_ELEMENTS), _between(rng, 1, 100)
    return Kernel.of("optimizer", elements=elements, read_bytes=8 * elements, write_bytes=4 * elements,
                     tensors=tensors)  # fmt: skip


def _dropout(rng: np.random.Generator) -> Kernel:
    return Kernel.of("dropout", elements=_between(rng, 1e3, MOST_ELEMENTS))


def _copy(family: str) -> Draw:
    return lambda rng: Kernel.of(family, bytes=4 * _between(rng, 256, MOST_ELEMENTS))


_DRAWS: tuple[Draw, ...] = (
    _conv("conv"),
    _conv("conv_dgrad"),
    _conv("conv_wgrad"),
    _pool,
    _rows_of_channels("batch_norm"),
    _rows_of_channels("batch_norm_backward"),
    _attention("attention"),
    _attention("attention_backward"),
    _sort,
    _update,
    _dropout,
    _copy("copy_h2d"),
    _copy("copy_d2h"),
)
