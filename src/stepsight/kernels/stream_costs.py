"""What kernels that stream memory cost, by family and by the operator's name.

``time = start + (bytes / (share × bandwidth)) ⊕ (elements / (rate × multiprocessors × clock))`` where ⊕
is the larger of the two, rounded where they meet. Most kernels wait for memory; those that compute an
index for every element, convert types one by one or call a transcendental function wait for
instructions: they issue the same few elements per multiprocessor and clock on every GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray

_CONSTANTS = area("kernels")
MEETING = _CONSTANTS.number("MEETING")


@dataclass(frozen=True, slots=True)
class Stream:
    """What a family costs to start, its share of memory bandwidth when large, its rate of instructions.

    ``rate`` is elements per multiprocessor and clock; 0 where instructions never bound the kernel;
    ``half_only``: they bound it in half precision alone.
    ``traffic`` is the part of the family's bytes that the kernel really moves.
    """

    start_us: float
    share: float
    spread: float
    per_row_us: float = 0.0
    rate: float = 0.0
    traffic: float = 1.0
    half_only: bool = False


# Sources: T = medians over profiler traces (public traces: V100, A100, H100, B200), start from
# kernels under 0.1 MB, share from kernels above 10 MB; M = Megatron's operators (A100 and GH200, three
# constants fitted to both); N = fp32 operators (eleven GPUs, operators above 50 µs).
STREAMS: Mapping[str, Stream] = {
    "elementwise": Stream(2.4, 0.87, 0.12),  # slope of the vector tables, V100 0.91 and A100 0.88
    "fill": Stream(1.8, 0.90, 0.15),  # T
    "dropout": Stream(2.5, 0.76, 0.15, rate=1.9),  # N: 9 bytes an element take as long as 11.9
    "softmax": Stream(4.0, 0.82, 0.12, rate=1.7),  # N for fp32; M: half waits for instructions
    "softmax_backward": Stream(3.3, 0.42, 0.15),  # M, N: a product grad · out, then the kernel itself
    "layer_norm": Stream(4.7, 0.80, 0.12, rate=2.3),  # N: fp32 on A100-80G and H100; M: half by instructions
    "layer_norm_backward": Stream(4.0, 0.64, 0.15),  # the input's gradient; N with the next line
    "layer_norm_weights": Stream(6.0, 0.60, 0.15),  # the gradients of weight and bias; N with the line before
    "rms_norm": Stream(4.0, 0.65, 0.25),  # fused; first principles: a layer norm without the mean
    "rms_norm_backward": Stream(6.0, 0.50, 0.3),
    "rotary": Stream(3.0, 0.75, 0.25),  # fused; first principles: element-wise on pairs
    "rotary_backward": Stream(3.0, 0.75, 0.25),
    "masked_fill": Stream(2.0, 0.75, 0.15, rate=1.49),  # M: the mask is broadcast, so indices are computed
    "masked_fill_backward": Stream(2.0, 0.75, 0.25, rate=1.49),
    "cross_entropy": Stream(5.0, 0.60, 0.25),  # fused; first principles: two passes over the logits
    "cross_entropy_backward": Stream(5.0, 0.75, 0.25),
    "batch_norm": Stream(5.0, 0.80, 0.12),  # T
    "batch_norm_backward": Stream(6.0, 0.75, 0.12),  # T
    "reduce": Stream(4.5, 0.70, 0.3),  # T: A100 0.68, H100 0.78; and a chain, see `streams`
    "pool": Stream(2.5, 0.80, 0.2),
    "gather": Stream(4.0, 0.60, 0.2, rate=0.85),  # T: aten::index, A100 0.80 to 0.98
    "scatter": Stream(6.0, 0.60, 0.3, rate=0.70),  # T: index_put, B200 0.70 to 0.73
    "concat": Stream(3.5, 0.68, 0.2),  # V100 DLRM lists: 9.4 MB in 19.4 µs, 56.6 MB in 92.6 µs
    "transpose": Stream(2.5, 0.62, 0.2, rate=1.45),  # T: half A100 1.33 to 1.49, H100 1.35 to 1.64; N: fp32
    # A pass of a radix sort. Published rates of whole sorts of 32-bit keys, 36 bytes a key: 0.66 of A100's
    # bandwidth (Adinets and Merrill, arXiv 2206.01784: 29.4 G keys/s), 0.63 of V100's (cub's tuning: 15.8).
    # Start: passes of two to 17 blocks, V100 and A100 11 µs, B200 6.6 (T). On traces that took no part (V100,
    # A800, A100) 5,000 to 15 M keys take 0.92 to 1.3 times this.
    "sort_pass": Stream(9.0, 0.65, 0.2),
    "sort": Stream(9.0, 0.65, 0.4),  # V100 DLRM lists: 351 keys, sorted by one block, in 10 µs
    # From and to pinned memory, share of the raw PCIe rate: mean of logarithms over four hosts. In training
    # traces they reach 6 of 15.75 GB/s (V100), 11.5 of 31.5 (A100) and 21 of 31.5 (A800); alone on the V100
    # DLRM lists' host 12.4 of 15.75.
    "copy_h2d": Stream(2.0, 0.52, 0.3),
    "copy_d2h": Stream(1.5, 0.52, 0.3),  # as host to device
    "copy_d2d": Stream(2.0, 0.85, 0.15),
    "optimizer": Stream(3.0, 0.80, 0.2),  # first principles: multi-tensor kernels stream as element-wise ones
    "nll_loss": Stream(3.0, 0.5, 0.3, per_row_us=0.02),  # one block: H100 512 rows in 13 µs
    "nll_loss_backward": Stream(2.0, 0.80, 0.3, per_row_us=0.004),  # H100 512 rows in 5 µs
}

VARIANTS: Mapping[tuple[str, str], Stream] = {
    ("sort_pass", "radix_histogram"): Stream(5.0, 0.75, 0.2),  # T: A100 0.69 to 0.86; 5 µs of 65,000 keys
    ("sort_pass", "radix_scan"): Stream(3.5, 0.75, 0.35),  # T: V100 3, A100 3.5 to 8, B200 1.7 µs
    # Accumulating index_put on strided columns, V100 DLRM lists: 74 k elements in 41 µs, 719 k in 319 µs.
    ("scatter", "index_put"): Stream(6.0, 0.04, 0.4),
    # One fp32 atomic addition per element, A100: 0.24 to 0.28 (fused embedding gradients, 0.4 to 2 ms).
    ("scatter", "atomic_add"): Stream(6.0, 0.60, 0.3, rate=0.26),
    ("gather", "index_select"): Stream(4.0, 0.60, 0.2, rate=0.60),  # T: A100 0.54, H100 0.59 to 0.76
    ("gather", "embedding"): Stream(4.0, 0.60, 0.2, rate=0.55),  # N: A100 0.45, H100 0.64, V100 0.4
    # Each pixel asks every window it lies in for its index: T, V100 0.33, H100 0.39 elements a clock.
    ("pool", "max_pool2d_with_indices_backward"): Stream(2.5, 0.80, 0.2, rate=0.35),
    # One block a plane, one trace (T): H100 12.8 M elements in 697 and 716 µs.
    ("pool", "adaptive_avg_pool2d"): Stream(2.5, 0.80, 0.4, rate=0.076),
    ("pool", "adaptive_avg_pool2d_backward"): Stream(2.5, 0.80, 0.4, rate=0.074),
    # Copies of images between the orders of channels and of pixels: VGG-13 on H100, fp32 0.83 to 0.88 (T).
    ("transpose", "layout"): Stream(2.5, 0.86, 0.2, rate=3.0),
    # cuDNN's batch norms of images in NCHW (1C11 kernels) access half-precision values one by one: 2.2
    # accesses per multiprocessor and clock (T: inference on A100, 1.1 of two accesses). Training reads twice
    # and writes once, its gradient reads two tensors twice and writes one.
    ("elementwise", "batch_norm_by_channel"): Stream(2.4, 0.87, 0.12, rate=1.1, half_only=True),
    ("batch_norm", "by_channel"): Stream(5.0, 0.80, 0.12, rate=0.73, half_only=True),
    ("batch_norm_backward", "by_channel"): Stream(6.0, 0.75, 0.12, rate=0.44, half_only=True),
    # Inductor's fused kernels: a trace also lists tensors that are read in part (T, 232 on H100). Those that
    # reduce rows wait for a row before they write it, as norms do.
    ("elementwise", "triton_pointwise"): Stream(2.4, 0.87, 0.25),
    ("elementwise", "triton_reduction"): Stream(3.0, 0.77, 0.25),
    ("elementwise", "by_grid"): Stream(2.4, 0.87, 0.3),
    ("elementwise", "gelu"): Stream(1.4, 0.93, 0.06, rate=2.5),  # M
    ("elementwise", "gelu_backward"): Stream(2.6, 0.95, 0.06, rate=2.05),  # M
    ("elementwise", "cast"): Stream(2.4, 0.87, 0.15, rate=1.31),  # T: unrolled kernel, A100 and B200 1.31
    ("elementwise", "tril"): Stream(2.4, 0.87, 0.2, rate=0.66),  # T
    # Megatron's fused kernel reads only what lies below the diagonal and writes everything: 3 of 4 bytes
    # forward, 4 of 6 backward. Rates by M, shares by the GPUs of Megatron's layers.
    ("softmax", "causal"): Stream(5.0, 0.73, 0.1, rate=3.6, traffic=3 / 4),
    ("softmax_backward", "causal"): Stream(4.3, 0.77, 0.1, rate=2.1, traffic=4 / 6),
    ("softmax_backward", "log_softmax"): Stream(3.3, 0.60, 0.2),  # without the product
    # Modules written out in eager PyTorch: several kernels and the gaps between them (M).
    ("rms_norm", "eager"): Stream(94.7, 0.25, 0.1, rate=0.58),
    ("rms_norm_backward", "eager"): Stream(95.7, 0.094, 0.1, rate=0.147),
    ("rotary", "eager"): Stream(208.0, 0.25, 0.12, rate=0.34),
    ("rotary_backward", "eager"): Stream(287.0, 0.043, 0.12),
    ("masked_fill", "eager"): Stream(1.0, 0.69, 0.1, rate=1.49),
    ("masked_fill_backward", "eager"): Stream(25.3, 0.15, 0.1, rate=0.436),
    ("cross_entropy", "eager"): Stream(293.0, 0.064, 0.1),
    ("cross_entropy_backward", "eager"): Stream(175.0, 0.42, 0.1),
}
"""Kernels of a family that behave unlike the rest of it, by the operator's plain name."""

AMD_SHARES: Mapping[str, float] = {
    "layer_norm": 0.675, "layer_norm_backward": 0.52, "layer_norm_weights": 0.52,
    "batch_norm": 0.5, "batch_norm_backward": 0.14, "transpose": 0.55,
    "pool": 0.4,
}  # fmt: skip
"""What AMD's GPUs reach of these shares: the kernels are written for NVIDIA's warps of 32 (N: MI100, MI210,
MI250; batch norm, pooling and copies around convolutions in traces of MI300X)."""
AMD_START_US = 2.5
"""Added to a kernel's start: none in traces of MI300X and MI250 takes less than 4 µs (T)."""


def meet(memory_us: FloatArray, instructions_us: FloatArray) -> FloatArray:
    """The larger of two bounds, rounded where they meet."""
    large = np.maximum(memory_us, instructions_us)
    small = np.minimum(memory_us, instructions_us)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(large > 0, small / large, 0.0)
    return np.asarray(large * (1 + share**MEETING) ** (1 / MEETING))
