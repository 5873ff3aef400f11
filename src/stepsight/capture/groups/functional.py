"""Collectives that are operators of the dispatcher: DTensor's functional ones, and c10d's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from stepsight.capture.gpu import streams
from stepsight.capture.groups.process_group import bytes_of, group_description, group_ranks
from stepsight.capture.recording.calls import CollectiveRecord, WaitRecord
from stepsight.capture.recording.facts import DTYPES, tensors_in
from stepsight.capture.recording.mode import Recorder

_KINDS = {
    "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all", "broadcast": "broadcast", "broadcast_": "broadcast",
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "_allgather_base_": "all_gather",
    "allgather_": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
}  # fmt: skip


def record_functional(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Write a functional collective or its wait down."""
    name = func._schema.name.partition("::")[2]
    stream = streams.current_stream().stream_id
    if name == "wait_tensor":
        if recorder.recording:
            recorder.records.append(WaitRecord(stream, storage=recorder.liveness.number(args[0])))
        return
    kind = _KINDS.get(name)
    if kind is None:
        return
    arguments = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    group = _group(arguments)
    inputs, outputs = list(tensors_in(args)), list(tensors_in(out))
    if func._schema.name.startswith("c10d::"):
        inputs, outputs = _own(kind, arguments)
    size = bytes_of(outputs if kind == "all_gather" else inputs)
    sent: list[float] = []
    received: list[float] = []
    if kind == "all_to_all":
        row = inputs[0][:1].numel() * inputs[0].element_size() if inputs[0].shape[0] else 0
        sent = [float(n * row) for n in arguments.get("input_split_sizes") or ()]
        received = [float(n * row) for n in arguments.get("output_split_sizes") or ()]
        if len(set(sent)) > 1 or len(set(received)) > 1:
            kind = "all_to_allv"
    mark = recorder.communicated(
        CollectiveRecord(
            -1, kind, size, group_ranks(group), stream,
            tuple(recorder.liveness.number(t) for t in outputs), DTYPES.get(inputs[0].dtype, "fp32"),
            send_splits=tuple(sent), receive_splits=tuple(received), description=group_description(group),
        )
    )  # fmt: skip
    waits = not arguments.get("async_op", arguments.get("asyncOp", True))
    if waits and mark >= 0:  # the call itself makes the current stream wait
        recorder.records.append(WaitRecord(stream, mark))


def _group(arguments: Any) -> Any:
    """The process group that a collective names or holds."""
    if "group_name" in arguments:
        return c10d._resolve_process_group(arguments["group_name"])
    held = arguments["process_group"]
    return held if isinstance(held, dist.ProcessGroup) else dist.ProcessGroup.unbox(held)


def _own(kind: str, arguments: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What a c10d operator reads, and what it writes (given to it beforehand)."""
    if "output_tensor" in arguments:
        inputs = arguments.get("input_tensor", arguments.get("input", []))
        return list(tensors_in(inputs)), list(tensors_in(arguments["output_tensor"]))
    written = arguments.get("output_tensors", arguments.get("outputs", arguments.get("output")))
    read = arguments.get("input_tensors", arguments.get("inputs", arguments.get("input")))
    tensors = list(tensors_in(arguments.get("tensors", [])))
    return list(tensors_in(read)) or tensors, list(tensors_in(written)) or tensors
