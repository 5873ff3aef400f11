"""Matrix products, attention, and recurrent layers of cuDNN (products over all time steps at once where
nothing recurs, and one per step).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from stepsight.program.aten.call import AtenCall, Precision, Sized, TensorFact, column_major
from stepsight.program.job import Kernel


def gemm_kernel(name: str, dtype: str, batch: int, m: int, n: int, k: int) -> Kernel:
    """C[b] (m×n) = A[b] (m×k) · B[b] (k×n)."""
    return Kernel.of("gemm", dtype, operator=name, batch=batch, m=m, n=n, k=k)


FEW_SUMS, LONG_SUM = 64, 4096
"""Results of a product up to which, and terms from which on, libraries split its reduction over the whole GPU
(split-k): it streams its operands, as a dot product does."""


def product(left: Sized, right: Sized, precision: Precision, name: str = "linear") -> Kernel:
    """The kernel of a matrix product or of a batch of them."""
    dtype = precision.matmul(left.dtype)
    m, k = left.shape[-2:]
    batch, n = prod(left.shape[:-2]), right.shape[-1]
    if batch == 1 and m * n <= FEW_SUMS and k >= LONG_SUM:
        return Kernel.of("reduce", left.dtype, operator="dot", rows=max(m, n), cols=k)
    made = gemm_kernel(name, dtype, batch, m, n, k)
    shared = next((side for side, t in ((1, left), (2, right)) if batch > 1 and _expanded(t)), 0)
    return replace(made, dims=(*made.dims, ("shared", float(shared)))) if shared else made


def _expanded(t: Sized) -> bool:
    """Whether one matrix serves a whole batch: torch multiplies a layer's weight with rows that no view makes
    a matrix by expanding it."""
    return len(t.shape) > 2 and all(
        stride == 0 or size == 1 for size, stride in zip(t.shape[:-2], t.strides[:-2], strict=True)
    )


def _named(call: AtenCall, left: TensorFact) -> str:
    """Forward: a layer. Backward: a transposed left operand means a weight's gradient."""
    if not call.node:
        return "linear"
    return "wgrad" if column_major(left) else "dgrad"


def mm(call: AtenCall, precision: Precision) -> list[Kernel]:
    left, right = call.on_gpu[:2]
    return [product(left, right, precision, _named(call, left))]


def mv(call: AtenCall, precision: Precision) -> list[Kernel]:
    matrix = call.on_gpu[-2] if call.name == "addmv" else call.on_gpu[0]
    m, k = matrix.shape
    return [gemm_kernel("linear", precision.matmul(matrix.dtype), 1, m, 1, k)]


def grouped_mm(call: AtenCall, precision: Precision) -> list[Kernel]:
    """A mixture of experts: rows are shared out among the groups, here evenly."""
    left, right, out = call.on_gpu[0], call.on_gpu[1], call.made_on_gpu[0]
    dtype = precision.matmul(left.dtype)
    if len(left.shape) == 2 and len(right.shape) == 3:
        groups = right.shape[0]
        rows = max(left.shape[0] // groups, 1)
        return [gemm_kernel("grouped", dtype, groups, rows, right.shape[2], left.shape[1])]
    if len(left.shape) == 2 and len(right.shape) == 2 and len(out.shape) == 3:
        groups = out.shape[0]
        depth = max(left.shape[1] // groups, 1)
        return [gemm_kernel("grouped", dtype, groups, left.shape[0], right.shape[1], depth)]
    return [product(left, right, precision, "grouped")]


def attention_kernel(family: str, q: Sized, k: Sized, causal: bool, name: str = "") -> Kernel:
    """Fused attention; batch × heads × sequence × head_dim. ``name`` says which kernel (flash, cuDNN's …)."""
    return Kernel.of(
        family, q.dtype, operator=name, batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], q=q.shape[2],
        kv=k.shape[2], head_dim=q.shape[3], causal=int(causal),
    )  # fmt: skip


GATES = (1, 1, 4, 3)
"""By cudnnRNNMode_t: ReLU, tanh, LSTM, GRU."""


class _Layers:
    """Sizes of a call: steps × rows of a batch, gates × hidden, and each layer's inputs."""

    def __init__(self, call: AtenCall, precision: Precision) -> None:
        data: TensorFact = call.arguments["input"]
        packed = call.get("batch_sizes", ())
        first, second = data.shape[:2]
        self.steps = len(packed) or (second if call.get("batch_first", False) else first)
        self.rows = max((first if packed else first * second) // max(self.steps, 1), 1)
        self.dtype, self.hidden = data.dtype, int(call.get("hidden_size", 1))
        self.product_dtype = precision.conv(data.dtype)  # cuDNN: torch.backends.cudnn.allow_tf32
        self.wide = GATES[call.get("mode", 2)] * self.hidden
        self.directions = 2 if call.get("bidirectional", False) else 1
        deeper = self.hidden * self.directions
        self.inputs = [data.shape[-1]] + [deeper] * (int(call.get("num_layers", 1)) - 1)

    def gemm(self, name: str, m: int, n: int, k: int) -> Kernel:
        return gemm_kernel(name, self.product_dtype, 1, m, n, k)

    def cell(self, name: str) -> Kernel:
        """Activations of one time step: gates read, state read and written."""
        size = {"fp16": 2, "bf16": 2}.get(self.dtype, 4)
        return Kernel.of(
            "elementwise", self.dtype, operator=name, elements=self.rows * self.hidden,
            read_bytes=self.rows * (self.wide + self.hidden) * size,
            write_bytes=2 * self.rows * self.hidden * size, indexed=0,
        )  # fmt: skip


def recurrent(call: AtenCall, precision: Precision) -> list[Kernel]:
    s = _Layers(call, precision)
    made: list[Kernel] = []
    for size in s.inputs * s.directions:
        made.append(s.gemm("linear", s.steps * s.rows, s.wide, size))
        made += [s.gemm("linear", s.rows, s.wide, s.hidden), s.cell("rnn_cell")] * s.steps
    return made


def recurrent_backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    s = _Layers(call, precision)
    made: list[Kernel] = []
    for size in s.inputs * s.directions:
        made += [s.cell("rnn_cell_backward"), s.gemm("dgrad", s.rows, s.hidden, s.wide)] * s.steps
        made.append(s.gemm("dgrad", s.steps * s.rows, size, s.wide))
        made.append(s.gemm("wgrad", s.wide, size, s.steps * s.rows))
        made.append(s.gemm("wgrad", s.wide, s.hidden, s.steps * s.rows))
    return made
