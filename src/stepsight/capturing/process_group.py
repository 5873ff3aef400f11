"""Collectives as they are recorded: a process group that writes down instead of sending, functional
collectives of the dispatcher, and objects that ranks send each other.

Ranks are captured one after the other. A rank that waits for another's message (a pipeline stage for the
shapes of the stage before) either finds it in the folder, or names the rank that it waits for: that rank is
captured first, and this one again.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.futures import Future

from stepsight.capturing.calls import DTYPES, CollectiveRecord, WaitRecord, tensors_in
from stepsight.capturing.device import stream_number
from stepsight.capturing.recorder import Recorder


class NeedsRankError(BaseException):
    """Another rank must be captured first; a BaseException, so that scripts do not catch it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} must be captured first")


class Exchange:
    """Messages by sender, receiver and number. Without a folder nothing is kept and nothing awaited."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = Path(folder) if folder else None
        self.rank = rank
        self._count: Counter[tuple[str, int]] = Counter()

    def put(self, kind: str, receiver: int, value: Any) -> None:
        path = self._path(kind, self.rank, receiver, receiver)
        if path is not None:
            path.write_bytes(pickle.dumps(value))

    def get(self, kind: str, sender: int) -> Any:
        """The next message of a sender, or `NeedsRankError`; None without a folder."""
        path = self._path(kind, sender, self.rank, sender)
        if path is None:
            return None
        if not path.exists():
            raise NeedsRankError(sender)
        return pickle.loads(path.read_bytes())  # written by this job's own ranks

    def _path(self, kind: str, sender: int, receiver: int, peer: int) -> Path | None:
        if self.folder is None:
            return None
        self._count[f"{kind} {sender}>{receiver}", peer] += 1
        number = self._count[f"{kind} {sender}>{receiver}", peer]
        return self.folder / f"{kind}-{sender}-{receiver}-{number}"


LARGEST_WORD = 64
"""Integers in one message up to here are exchanged between captures."""


def _flat(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        else:
            yield from _flat(value)


def bytes_of(tensors: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in _flat(tensors)))


class RecordedWork(dist._Work):  # type: ignore[misc]
    """Done at once; waiting for it is written down."""

    def __init__(self, recorder: Recorder, mark: int, results: Any) -> None:
        super().__init__()
        self.recorder, self.mark, self.results = recorder, mark, results

    def wait(self, timeout: Any = None) -> bool:
        self.recorder.waited(self.mark)
        return True

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def get_future(self) -> Any:
        future: Any = Future()
        future.set_result(self.results)
        return future

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def result(self) -> Any:
        return self.results


class RecordingGroup(dist.ProcessGroup):  # type: ignore[misc]
    """One process group as one rank sees it."""

    recorder: Recorder
    exchange: Exchange
    batch: list[tuple[CollectiveRecord, RecordedWork]] | None = None
    """Messages of the batch under way (batch_isend_irecv)."""

    def __init__(self, rank: int, size: int, name: str = "") -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, name

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        return "nccl"

    @property
    def group_name(self) -> str:
        return str(c10d._world.pg_names.get(self, self._name))

    @property
    def pg_name(self) -> str:
        return self.group_name

    def recorded(
        self, kind: str, tensors: Any, bytes_: float, results: Any, *, peer: int = -1, sends: bool = True,
        send_splits: Sequence[float] = (), receive_splits: Sequence[float] = (),
    ) -> RecordedWork:  # fmt: skip
        flat = list(_flat(tensors))
        on_gpu = [t for t in flat if t.device.type == "cuda"]
        mark = -1
        if on_gpu or not flat:
            record = CollectiveRecord(
                -1, kind, bytes_, group_ranks(self), stream_number(),
                tuple(self.recorder.liveness.number(t) for t in _flat(results)),
                DTYPES.get(flat[0].dtype, "fp32") if flat else "fp32", peer, sends, tuple(send_splits),
                tuple(receive_splits), description=group_description(self),
            )  # fmt: skip
            if kind == "send_recv" and RecordingGroup.batch is not None:
                work = RecordedWork(self.recorder, -1, results)
                RecordingGroup.batch.append((record, work))
                return work
            mark = self.recorder.communicated(record)
        for t in _flat(results):
            self.recorder.values.forget(t)
        return RecordedWork(self.recorder, mark, results)

    def _keep(self, outputs: Any, inputs: Any) -> None:
        """Small known values arrive as this rank sent them: every rank is taken to be identical."""
        for outs, one in zip(outputs, inputs, strict=False):
            value = self.recorder.values.of(one)
            for out in _flat([outs]):
                if value is not None and out.shape == value.shape:
                    self._fill(out, value.clone())

    def allreduce(self, tensors: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("all_reduce", tensors, bytes_of(tensors), list(tensors))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = None) -> RecordedWork:
        known = [(t, self.recorder.values.of(t)) for t in tensors]
        work = self.recorded("broadcast", tensors, bytes_of(tensors), list(tensors))
        for t, value in known:
            if value is not None:
                self.recorder.values.learn(t, value.clone())
        return work

    def reduce(self, tensors: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("reduce", tensors, bytes_of(tensors), list(tensors))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        made = list(_flat(outputs))
        work = self.recorded("all_gather", [*made, *inputs], bytes_of(made), made)
        self._keep(outputs, inputs)
        work.results = outputs
        return work

    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("all_gather", [output, source], bytes_of([output]), [output])

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("all_gather", [*outputs, *inputs], bytes_of(outputs), list(outputs))

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("all_gather", inputs, bytes_of(outputs), list(_flat(outputs)))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("reduce_scatter", outputs, bytes_of(inputs), list(outputs))

    def _reduce_scatter_base(self, output: Any, source: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("reduce_scatter", [output, source], bytes_of([source]), [output])

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self.recorded("reduce_scatter", [*outputs, *inputs], bytes_of(inputs), list(outputs))

    def alltoall_base(
        self, output: Any, source: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> RecordedWork:
        sent, received = _split_bytes(source, input_splits), _split_bytes(output, output_splits)
        work = self.exchanged([output, source], bytes_of([source]), [output], sent, received)
        self._keep([output], [source])  # counts of tokens: others send as many as this rank does
        return work

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        sent, received = [bytes_of([t]) for t in inputs], [bytes_of([t]) for t in outputs]
        return self.exchanged([*outputs, *inputs], sum(sent), list(outputs), sent, received)

    def exchanged(
        self, tensors: Any, bytes_: float, results: Any, sent: list[float], received: list[float]
    ) -> RecordedWork:
        kind = _exchange_kind(sent, received)
        return self.recorded(kind, tensors, bytes_, results, send_splits=sent, receive_splits=received)

    def barrier(self, opts: Any = None) -> RecordedWork:
        return self.recorded("barrier", [], 4.0, [])

    def send(self, tensors: Any, peer: int, tag: int = 0) -> RecordedWork:
        for t in tensors:
            value = self.recorder.values.of(t)
            if _is_word(t) and value is not None:
                self.exchange.put("number", group_ranks(self)[peer], value.tolist())
        return self.recorded("send_recv", tensors, bytes_of(tensors), [], peer=peer, sends=True)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> RecordedWork:
        work = self.recorded("send_recv", tensors, bytes_of(tensors), list(tensors), peer=peer, sends=False)
        for t in tensors:
            sent = self.exchange.get("number", group_ranks(self)[peer]) if peer >= 0 and _is_word(t) else None
            if sent is not None:
                self._fill(t, torch.tensor(sent, dtype=t.dtype))
        return work

    def _fill(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """``target`` holds ``value`` from now on."""
        if isinstance(target, torch._subclasses.FakeTensor):
            self.recorder.values.learn(target, value)
        else:
            target.copy_(value)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> RecordedWork:
        return self.recv(tensors, -1, tag)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        self._keep(outputs, inputs)
        size = bytes_of(inputs) * self._size
        return self.recorded("all_gather", inputs, size, list(_flat(outputs)))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        size = bytes_of(outputs) * self._size
        return self.recorded("broadcast", outputs, size, list(outputs))


def batch_messages(operations: Sequence[Any]) -> list[RecordedWork]:
    """torch.distributed.batch_isend_irecv: messages with one peer go both ways at once."""
    RecordingGroup.batch = []
    try:
        for one in operations:
            group = one.group or c10d._get_default_group()
            send = one.op in (dist.isend, c10d.isend)
            (group.send if send else group.recv)([one.tensor], one.group_peer, one.tag)
        batch = RecordingGroup.batch
    finally:
        RecordingGroup.batch = None
    by_peer: dict[tuple[tuple[int, ...], int], list[tuple[CollectiveRecord, RecordedWork]]] = {}
    for record, work in batch:
        by_peer.setdefault((record.group, record.peer), []).append((record, work))
    for together in by_peer.values():
        first = together[0][0]
        ways = [sum(r.bytes for r, _ in together if r.sends == sends) for sends in (True, False)]
        first.bytes = max(ways)
        first.storages = tuple(s for r, _ in together for s in r.storages)
        mark = RecordingGroup.recorder.communicated(first)
        for _, work in together:
            work.mark = mark
    return [work for _, work in batch]


def _exchange_kind(sent: Sequence[float], received: Sequence[float]) -> str:
    return "all_to_allv" if len(set(sent)) > 1 or len(set(received)) > 1 else "all_to_all"


def _split_bytes(tensor: torch.Tensor, splits: Sequence[int] | None) -> list[float]:
    if not splits:
        return []
    row = tensor[:1].numel() * tensor.element_size() if tensor.shape and tensor.shape[0] else 0
    return [float(n * row) for n in splits]


def group_ranks(group: Any) -> tuple[int, ...]:
    """The global ranks of a group, in its order."""
    known = c10d._world.pg_group_ranks.get(group)
    return tuple(known) if known else tuple(range(group.size()))


def group_description(group: Any) -> str:
    """What whoever made the group called it (a mesh says mesh_tp and the like)."""
    try:
        return str(group.group_desc)
    except (RuntimeError, AttributeError):
        return ""


def _is_word(t: torch.Tensor) -> bool:
    """A few integers: something a rank says to another, not data."""
    return not t.dtype.is_floating_point and t.numel() <= LARGEST_WORD


def maker(recorder: Recorder, exchange: Exchange) -> Callable[..., RecordingGroup]:
    """How torch.distributed makes a group of this backend."""
    RecordingGroup.recorder, RecordingGroup.exchange = recorder, exchange

    def make(store: Any, rank: int, size: int, timeout: Any = None, **_: Any) -> RecordingGroup:
        return RecordingGroup(rank, size)

    return make


_KINDS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast",
}  # fmt: skip
"""By how an operator's name begins, without underscores."""


def record_functional(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Write a functional collective or its wait down."""
    name = func._schema.name.partition("::")[2].replace("_", "")
    if name == "waittensor":
        if recorder.recording:
            recorder.records.append(WaitRecord(stream_number(), storage=recorder.liveness.number(args[0])))
        return
    kind = next((kind for begin, kind in _KINDS.items() if name.startswith(begin)), None)
    if kind is None:
        return
    arguments = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    inputs, outputs = list(tensors_in(args)), list(tensors_in(out))
    if func._schema.name.startswith("c10d::"):
        inputs, outputs = _own(arguments)
    size = bytes_of(outputs if kind == "all_gather" else inputs)
    group = _group(arguments)
    if kind == "all_to_all":
        sent = _split_bytes(inputs[0], arguments.get("input_split_sizes"))
        received = _split_bytes(inputs[0], arguments.get("output_split_sizes"))
        work = group.exchanged(inputs, size, outputs, sent, received)
    else:
        work = group.recorded(kind, inputs, size, outputs)
    if not arguments.get("async_op", arguments.get("asyncOp", True)):
        work.wait()  # the call itself makes the current stream wait


def _group(arguments: Any) -> Any:
    """The process group that a collective names or holds."""
    if "group_name" in arguments:
        return c10d._resolve_process_group(arguments["group_name"])
    held = arguments["process_group"]
    return held if isinstance(held, dist.ProcessGroup) else dist.ProcessGroup.unbox(held)


def _own(arguments: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What a c10d operator reads, and what it writes (given to it beforehand)."""
    if "output_tensor" in arguments:
        inputs = arguments.get("input_tensor", arguments.get("input", []))
        return list(tensors_in(inputs)), list(tensors_in(arguments["output_tensor"]))
    written = arguments.get("output_tensors", arguments.get("outputs", arguments.get("output")))
    read = arguments.get("input_tensors", arguments.get("inputs", arguments.get("input")))
    tensors = list(tensors_in(arguments.get("tensors", [])))
    return list(tensors_in(read)) or tensors, list(tensors_in(written)) or tensors
