"""Optimizer steps: multi-tensor (foreach) or fused kernels on a GPU, one tensor at a time on a CPU.

torch chooses foreach for CUDA parameters and the plain loop for CPU parameters; ``fused``
is opt-in on both. Step counters live on the host and launch nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepsight.program.job import Kernel
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor

OPTIMIZERS = ("none", "sgd", "adagrad", "adam", "adamw")
STATE_PER_PARAMETER = {"none": 0, "sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2}
"""fp32 tensors kept per parameter."""
_CLASS = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "Adam", "adamw": "AdamW"}

# torch's multi-tensor launcher: 65,536 elements a chunk, 320 chunks a launch, and this many
# tensors a launch by the number of tensor lists (ATen/native/cuda/MultiTensorApply.cuh).
_CHUNK_ELEMENTS = 65536
_CHUNKS = 320
MOST_LAUNCHES = 512
"""Launches of one pass over the parameters that are told apart, about: 21 million elements each, so models up
to 10 billion parameters a rank are cut as torch cuts them."""
_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}


@dataclass(frozen=True, slots=True)
class _Step:
    """One pass over all parameters: its name, tensor lists read (parameter-sized) and lists written."""

    name: str
    lists: int
    reads: int
    writes: int = 1


_FOREACH = {
    "sgd": (_Step("add_", 2, 2),),
    "adagrad": (_Step("addcmul_", 3, 3), _Step("sqrt", 2, 1), _Step("add_", 1, 1), _Step("mul_", 1, 1),
                _Step("addcdiv_", 3, 3)),
    "adam": (_Step("lerp_", 2, 2), _Step("mul_", 1, 1), _Step("addcmul_", 3, 3), _Step("sqrt", 2, 1),
             _Step("div_", 1, 1), _Step("add_", 1, 1), _Step("addcdiv_", 3, 3)),
}  # fmt: skip
_FOREACH["adamw"] = (_Step("mul_", 1, 1), *_FOREACH["adam"])
_FUSED = {"sgd": _Step("sgd_", 2, 2), "adagrad": _Step("adagrad_", 3, 3, 2),
          "adam": _Step("adam_", 4, 4, 3), "adamw": _Step("adamw_", 4, 4, 3)}  # fmt: skip


def zero_grad(tape: Tape, optimizer: str, parameters: Sequence[Tensor], how: str) -> None:
    """``none`` drops the gradients; ``zero`` fills them."""
    if optimizer == "none":
        return
    with tape.op(f"Optimizer.zero_grad#{_CLASS[optimizer]}.zero_grad"):
        if how == "zero":
            for p in parameters:
                tape.call("aten::zero_", (p,), Kernel.of("fill", p.dtype, bytes=p.bytes))


def step(tape: Tape, optimizer: str, parameters: Sequence[Tensor], fused: bool) -> None:
    """One update of all parameters."""
    if optimizer == "none" or not parameters:
        return
    if parameters[0].dtype != "fp32":
        _master_step(tape, optimizer, parameters)
        return
    with tape.op(f"Optimizer.step#{_CLASS[optimizer]}.step"):
        if optimizer != "sgd" and (fused or tape.device == "cuda"):
            tape.call("aten::_foreach_add_", ())  # the step counters
        if fused:
            _multi_tensor(tape, f"aten::_fused_{_FUSED[optimizer].name}", _FUSED[optimizer], parameters)
        elif tape.device == "cuda":
            for one in _FOREACH[optimizer]:
                _multi_tensor(tape, f"aten::_foreach_{one.name}", one, parameters)
        else:
            for p in parameters:
                _single_tensor(tape, optimizer, p)


def _master_step(tape: Tape, optimizer: str, parameters: Sequence[Tensor]) -> None:
    """Half-precision parameters: gradients to fp32, their norm, the fused update, and the copies back."""
    fused = _FUSED[optimizer]
    with tape.op(f"Optimizer.step#{_CLASS[optimizer]}.step"):
        for name, lists, read, write in (
            ("multi_tensor_scale", 2, 2, 4), ("multi_tensor_l2norm", 1, 4, 0),
            (f"fused_{fused.name}", fused.lists, 4 * fused.reads, 4 * fused.writes),
            ("multi_tensor_copy", 2, 4, 2),
        ):  # fmt: skip
            tape.call(f"apex::{name}", ())
            for tensors, elements in _launches(parameters, lists):
                tape.launch(
                    Kernel.of("optimizer", "fp32", name=name, elements=elements, read_bytes=read * elements,
                              write_bytes=write * elements, tensors=tensors)
                )  # fmt: skip


def _multi_tensor(tape: Tape, aten: str, one: _Step, parameters: Sequence[Tensor]) -> None:
    tape.call(aten, ())
    for tensors, elements in _launches(parameters, one.lists):
        tape.launch(
            Kernel.of("optimizer", "fp32", name=aten.removeprefix("aten::"), elements=elements,
                      read_bytes=4 * one.reads * elements, write_bytes=4 * one.writes * elements,
                      tensors=tensors)
        )  # fmt: skip


def _launches(parameters: Sequence[Tensor], lists: int) -> list[tuple[int, int]]:
    """How the multi-tensor launcher cuts the work: (tensors, elements) of each launch.

    Of a very large tensor many launches in a row are taken as one: they stream through memory one after the
    other, and each takes far longer than its launch.
    """
    launches: list[tuple[int, int]] = []
    tensors = chunks = elements = 0
    most = max(_CHUNKS * _CHUNK_ELEMENTS, sum(p.elements for p in parameters) // MOST_LAUNCHES)
    for i, p in enumerate(parameters):
        left = p.elements
        tensors += 1
        while left > 0:
            if chunks == 0 and left > 2 * most > 2 * _CHUNKS * _CHUNK_ELEMENTS:
                launches.append((1, most))
                left -= most
                continue
            take = min(left, (_CHUNKS - chunks) * _CHUNK_ELEMENTS)
            left -= take
            elements += take
            chunks += -(-take // _CHUNK_ELEMENTS)
            last = i == len(parameters) - 1 and left == 0
            if chunks == _CHUNKS or (tensors == _TENSORS[lists] and left == 0) or last:
                launches.append((tensors, elements))
                tensors, chunks, elements = (1 if left else 0), 0, 0
    return launches


def _single_tensor(tape: Tape, optimizer: str, p: Tensor) -> None:
    """The loop body of torch's single-tensor optimizers."""

    def one(name: str, *inputs: Tensor) -> None:
        tape.call(
            f"aten::{name}", inputs,
            Kernel.of("elementwise", "fp32", name=name.rstrip("_"), elements=p.elements,
                      read_bytes=len(inputs) * p.bytes, write_bytes=p.bytes),
        )  # fmt: skip

    if optimizer == "sgd":
        one("add_", p, p)
        return
    tape.call("aten::add_", (Tensor.new(()),))
    if optimizer == "adagrad":
        one("addcmul_", p, p, p)
        one("sqrt", p)
        one("add_", p)
        one("addcdiv_", p, p, p)
        return
    if optimizer == "adamw":
        one("mul_", p)
    one("lerp_", p, p)
    one("mul_", p)
    one("addcmul_", p, p, p)
    one("sqrt", p)
    one("div", p)
    one("add_", p)
    one("addcdiv_", p, p, p)
