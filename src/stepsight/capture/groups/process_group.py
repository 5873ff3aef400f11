"""A process group that moves nothing: it reports what would be sent, and when it is waited for.

DDP's reducer, FSDP and DTensor run on it as on NCCL. It says of itself that it is "nccl".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.futures import Future

from stepsight.capture.gpu import streams
from stepsight.capture.groups.exchange import Exchange
from stepsight.capture.recording.calls import CollectiveRecord
from stepsight.capture.recording.facts import DTYPES
from stepsight.capture.recording.mode import Recorder

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

    def block_current_stream(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        future: Any = Future()
        future.set_result(self.results)
        return future

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

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

    def _record(
        self, kind: str, tensors: Any, bytes_: float, results: Any, *, peer: int = -1, sends: bool = True,
        send_splits: Sequence[float] = (), receive_splits: Sequence[float] = (),
    ) -> RecordedWork:  # fmt: skip
        flat = list(_flat(tensors))
        on_gpu = [t for t in flat if t.device.type == "cuda"]
        mark = -1
        if on_gpu or not flat:
            record = CollectiveRecord(
                -1, kind, bytes_, group_ranks(self), streams.current_stream().stream_id,
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
        return self._record("all_reduce", tensors, bytes_of(tensors), list(tensors))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> RecordedWork:
        return self._record("all_reduce", tensors, bytes_of(tensors), list(tensors))

    def broadcast(self, tensors: Any, opts: Any = None) -> RecordedWork:
        known = [(t, self.recorder.values.of(t)) for t in tensors]
        work = self._record("broadcast", tensors, bytes_of(tensors), list(tensors))
        for t, value in known:
            if value is not None:
                self.recorder.values.learn(t, value.clone())
        return work

    def reduce(self, tensors: Any, opts: Any = None) -> RecordedWork:
        return self._record("reduce", tensors, bytes_of(tensors), list(tensors))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        work = self._record("all_gather", [*_flat(outputs), *inputs], bytes_of(outputs), list(_flat(outputs)))
        self._keep(outputs, inputs)
        work.results = outputs
        return work

    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> RecordedWork:
        return self._record("all_gather", [output, source], bytes_of([output]), [output])

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self._record("all_gather", [*outputs, *inputs], bytes_of(outputs), list(outputs))

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self._record("all_gather", inputs, bytes_of(outputs), list(_flat(outputs)))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self._record("reduce_scatter", outputs, bytes_of(inputs), list(outputs))

    def _reduce_scatter_base(self, output: Any, source: Any, opts: Any = None) -> RecordedWork:
        return self._record("reduce_scatter", [output, source], bytes_of([source]), [output])

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        return self._record("reduce_scatter", [*outputs, *inputs], bytes_of(inputs), list(outputs))

    def alltoall_base(
        self, output: Any, source: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> RecordedWork:
        sent, received = _split_bytes(source, input_splits), _split_bytes(output, output_splits)
        uneven = len(set(sent)) > 1 or len(set(received)) > 1
        work = self._record(
            "all_to_allv" if uneven else "all_to_all", [output, source], bytes_of([source]), [output],
            send_splits=sent, receive_splits=received,
        )  # fmt: skip
        self._keep([output], [source])  # counts of tokens: others send as many as this rank does
        return work

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        sent, received = [bytes_of([t]) for t in inputs], [bytes_of([t]) for t in outputs]
        uneven = len(set(sent)) > 1 or len(set(received)) > 1
        return self._record(
            "all_to_allv" if uneven else "all_to_all", [*outputs, *inputs], sum(sent), list(outputs),
            send_splits=sent, receive_splits=received,
        )  # fmt: skip

    def barrier(self, opts: Any = None) -> RecordedWork:
        return self._record("barrier", [], 4.0, [])

    def send(self, tensors: Any, peer: int, tag: int = 0) -> RecordedWork:
        for t in tensors:
            value = self.recorder.values.of(t)
            if _is_word(t) and value is not None:
                self.exchange.put("number", group_ranks(self)[peer], value.tolist())
        return self._record("send_recv", tensors, bytes_of(tensors), [], peer=peer, sends=True)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> RecordedWork:
        work = self._record("send_recv", tensors, bytes_of(tensors), list(tensors), peer=peer, sends=False)
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
        return self._record("all_gather", inputs, size, list(_flat(outputs)))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        size = bytes_of(outputs) * self._size
        return self._record("broadcast", outputs, size, list(outputs))


def batch_messages(operations: Sequence[Any]) -> list[RecordedWork]:
    """torch.distributed.batch_isend_irecv: messages with one peer go both ways at once."""
    RecordingGroup.batch = []
    try:
        for one in operations:
            group = one.group or c10d._get_default_group()
            peer = one.group_peer if hasattr(one, "group_peer") else group_ranks(group).index(one.peer)
            sends = one.op in (dist.isend, c10d.isend)
            (group.send if sends else group.recv)([one.tensor], peer, one.tag)
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
