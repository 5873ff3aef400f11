"""Multi-tensor (foreach and fused) kernels: one pass over many tensors, cut into launches."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.dtypes import dtype_bytes
from stepsight.program.aten.call import AtenCall, Precision, Sized, TensorFact, elements, lists_of_tensors
from stepsight.program.job import Kernel

# torch's multi-tensor launcher: 65,536 elements a chunk, 320 chunks a launch, and this many
# tensors a launch by the number of tensor lists (ATen/native/cuda/MultiTensorApply.cuh).
_CHUNK_ELEMENTS = 65536
_CHUNKS = 320
_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}

_FUSED_LISTS = {
    "_fused_adam_": ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "_fused_adamw_": ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"),
    "_fused_sgd_": ("self", "grads", "momentum_buffer_list"),
    "_fused_adagrad_": ("self", "grads", "state_sums"),
}
"""The tensor lists of fused optimizers as large as the parameters; gradients alone are only read."""
_READ_ONLY_RESULT = ("_foreach_norm", "_foreach_max")
"""Reductions: a number per tensor comes out."""


def launches(sizes: Sequence[int], lists: int) -> list[tuple[int, int]]:
    """How the multi-tensor launcher cuts tensors of these elements: (tensors, elements) of each launch."""
    cut: list[tuple[int, int]] = []
    tensors = chunks = held = 0
    most = _TENSORS[min(max(lists, 1), 5)]
    for i, size in enumerate(sizes):
        left = size
        tensors += 1
        while left > 0:
            take = min(left, (_CHUNKS - chunks) * _CHUNK_ELEMENTS)
            left -= take
            held += take
            chunks += -(-take // _CHUNK_ELEMENTS)
            last = i == len(sizes) - 1 and left == 0
            if chunks == _CHUNKS or (tensors == most and left == 0) or last:
                cut.append((tensors, held))
                tensors, chunks, held = (1 if left else 0), 0, 0
    return cut


def multi_tensor_kernels(
    name: str, tensors: Sequence[Sized], lists: int, read_bytes_each: float, write_bytes_each: float,
    dtype: str = "",
) -> list[Kernel]:  # fmt: skip
    """The launches of one pass over ``tensors``; bytes are those read and written for one element."""
    dtype = dtype or (tensors[0].dtype if tensors[0].dtype in ("fp16", "bf16") else "fp32")
    return [
        Kernel.of("optimizer", dtype, operator=name, elements=count, read_bytes=read_bytes_each * count,
                  write_bytes=write_bytes_each * count, tensors=held)
        for held, count in launches([elements(t) for t in tensors], lists)
    ]  # fmt: skip


def multi_tensor(call: AtenCall, precision: Precision) -> list[Kernel]:
    """Any _foreach_, _fused_ or _amp_foreach_ call."""
    if call.name in _FUSED_LISTS:
        return _fused(call)
    lists = [list(one) for one in lists_of_tensors(call)]
    if not lists:
        return []
    first, in_place = lists[0], call.name.endswith("_")
    each = dtype_bytes(first[0].dtype)
    if call.name.startswith(_READ_ONLY_RESULT):
        passes = multi_tensor_kernels(call.name, first, 1, each, 0)
        return [*passes, Kernel.of("fill", "fp32", operator="cleanup", bytes=4 * len(first))]
    if call.name == "_foreach_zero_":
        return multi_tensor_kernels(call.name, first, 1, 0, each)
    same = [one for one in lists if one[0].elements > 1 or first[0].elements <= 1]
    read = float(sum(dtype_bytes(one[0].dtype) for one in same))
    if call.name == "_foreach_copy_":
        return multi_tensor_kernels(call.name, first, 2, float(dtype_bytes(lists[-1][0].dtype)), each)
    return multi_tensor_kernels(call.name, first, len(same) + (not in_place), read, each)


def _fused(call: AtenCall) -> list[Kernel]:
    names = _FUSED_LISTS[call.name]
    held = [list(call.arguments.get(name) or ()) for name in names]
    lists = [[t for t in one if isinstance(t, TensorFact)] for one in held]
    lists = [one for one in lists if one]
    if not lists:
        return []
    read = float(sum(dtype_bytes(one[0].dtype) for one in lists))
    write = read - dtype_bytes(lists[1][0].dtype)
    return multi_tensor_kernels(call.name, lists[0], len(lists), read, write)
