"""Recurrent layers of cuDNN: products over all time steps at once where nothing recurs, and one per step."""

from __future__ import annotations

from stepsight.program.aten.call import AtenCall, Precision, TensorFact
from stepsight.program.aten.products import gemm_kernel
from stepsight.program.job import Kernel

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
        self.product_dtype = precision.matmul(data.dtype)
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


def forward(call: AtenCall, precision: Precision) -> list[Kernel]:
    s = _Layers(call, precision)
    made: list[Kernel] = []
    for size in s.inputs * s.directions:
        made.append(s.gemm("linear", s.steps * s.rows, s.wide, size))
        made += [s.gemm("linear", s.rows, s.wide, s.hidden), s.cell("rnn_cell")] * s.steps
    return made


def backward(call: AtenCall, precision: Precision) -> list[Kernel]:
    s = _Layers(call, precision)
    made: list[Kernel] = []
    for size in s.inputs * s.directions:
        made += [s.cell("rnn_cell_backward"), s.gemm("dgrad", s.rows, s.hidden, s.wide)] * s.steps
        made.append(s.gemm("dgrad", s.steps * s.rows, size, s.wide))
        made.append(s.gemm("wgrad", s.wide, size, s.steps * s.rows))
        made.append(s.gemm("wgrad", s.wide, s.hidden, s.steps * s.rows))
    return made
