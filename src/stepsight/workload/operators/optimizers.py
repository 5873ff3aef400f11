"""Optimizer steps: multi-tensor (foreach) or fused kernels on a GPU, one tensor at a time on a CPU.

torch chooses foreach for CUDA parameters and the plain loop for CPU parameters; ``fused``
is opt-in on both. Step counters live on the host and launch nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepsight.program.aten.movement import fill_kernel, multi_tensor_kernels
from stepsight.program.job import Kernel
from stepsight.workload.operators.tape import Tape
from stepsight.workload.operators.tensor import Tensor

OPTIMIZERS = ("none", "sgd", "adagrad", "adam", "adamw")
STATE_PER_PARAMETER = {"none": 0, "sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2}
"""fp32 tensors kept per parameter."""
_CLASS = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "Adam", "adamw": "AdamW"}


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


def temporaries(optimizer: str, fused: bool, narrow: bool) -> int:
    """Lists of fp32 tensors, as large as the parameters, that an update takes and drops again: the square
    roots of Adam and Adagrad where no kernel holds them, the widened gradients of half parameters."""
    if optimizer == "none":
        return 0
    if narrow:
        return 1
    return int(not fused and any(one.name == "sqrt" for one in _FOREACH[optimizer]))


def zero_grad(tape: Tape, optimizer: str, parameters: Sequence[Tensor], how: str) -> None:
    """``none`` drops the gradients; ``zero`` fills them."""
    if optimizer == "none":
        return
    with tape.op(f"Optimizer.zero_grad#{_CLASS[optimizer]}.zero_grad"):
        if how == "zero":
            for p in parameters:
                tape.call("aten::zero_", (p,), fill_kernel(p))


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
            tape.launch(*multi_tensor_kernels(name, parameters, lists, read, write, "fp32"))


def _multi_tensor(tape: Tape, aten: str, one: _Step, parameters: Sequence[Tensor]) -> None:
    tape.call(aten, ())
    name = aten.removeprefix("aten::")
    tape.launch(*multi_tensor_kernels(name, parameters, one.lists, 4 * one.reads, 4 * one.writes))


def _single_tensor(tape: Tape, optimizer: str, p: Tensor) -> None:
    """The loop body of torch's single-tensor optimizers: the same steps; Adagrad needs no product."""
    if optimizer != "sgd":
        tape.call("aten::add_", (Tensor.new(()),))  # the step counter
    for one in _FOREACH[optimizer]:
        if optimizer == "adagrad" and one.name == "mul_":
            continue
        name = "div" if one.name == "div_" else one.name
        kernel = Kernel.of("elementwise", "fp32", operator=name.rstrip("_"), elements=p.elements,
                           read_bytes=one.reads * p.bytes, write_bytes=p.bytes)  # fmt: skip
        tape.call(f"aten::{name}", (p,) * one.reads, kernel)


UPDATES = {**STATE_PER_PARAMETER, "lamb": 2}
"""Optimizers, and the fp32 tensors that each keeps for a parameter."""
