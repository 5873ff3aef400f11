"""What a step really calls: every library call below autograd, with its tensors' sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepsight.program.job import Call, Op
from stepsight.run.trainer import WARM_STEPS, Trainer
from stepsight.run.worker import Rank
from stepsight.workload.files import Workload

VIEWS = frozenset(
    {
        "aten::view", "aten::_unsafe_view", "aten::t", "aten::transpose", "aten::permute", "aten::expand",
        "aten::slice", "aten::select", "aten::split", "aten::split_with_sizes", "aten::unsqueeze",
        "aten::squeeze", "aten::detach", "aten::alias", "aten::as_strided", "aten::_reshape_alias",
        "aten::unbind", "aten::chunk", "aten::lift_fresh", "aten::_local_scalar_dense",
    }
)  # fmt: skip
"""Calls that only make a new view, or read one number on the host; they launch nothing."""
ALLOCATIONS = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided",
                         "aten::new_empty_strided", "aten::set_"})  # fmt: skip
"""Calls that only reserve memory."""
SAME = {"aten::add_": "aten::add", "aten::index_put": "aten::_index_put_impl_",
        "aten::index_add": "aten::index_add_"}  # fmt: skip
"""The same kernel under two names: gradients that meet are added in place where autograd holds the
only reference; index_put and index_add write in place unless something (here: the recorder) looks on."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Collects the calls made while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if name.startswith("aten::_foreach") or name.startswith("aten::_fused"):
            self.calls.append(Call(name))  # lists of all parameters
        elif not name.startswith("profiler::") and name not in VIEWS and name not in ALLOCATIONS:
            self.calls.append(Call(SAME.get(name, name), tuple(_shapes(args))))
        return func(*args, **(kwargs or {}))


def _shapes(values: Sequence[Any]) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            shapes.append(tuple(value.shape))
        elif isinstance(value, (list, tuple)):
            shapes.extend(_shapes(value))
    return shapes


def program_calls(ops: Sequence[Op]) -> list[Call]:
    """The calls a rank program lists, in order."""
    return [
        Call(SAME.get(call.name, call.name), call.shapes)
        for op in ops
        for call in op.calls
        if call.name not in VIEWS
    ]


def record_step(rank: Rank, workload: Workload) -> list[Call]:
    """Every library call of one step after warm-up, in order."""
    trainer = Trainer(workload, rank.rank, rank.device)
    for _ in range(WARM_STEPS):
        trainer.step()
    recorder = Recorder()
    with recorder:
        trainer.step()
    return list(recorder.calls)
