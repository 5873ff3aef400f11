"""Kineto traces: what torch.profiler writes, from torch 1.8 on, for CUDA and ROCm."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from stepsight.errors import InputError
from stepsight.hardware.spec import BYTES_PER_GB
from stepsight.inputs import check_limit
from stepsight.terminal import counted
from stepsight.trace.events import (
    ANNOTATION,
    CATEGORIES,
    GPU,
    HOST_OP,
    MOST_BYTES,
    NO_ARGS,
    NO_RAW,
    RUNTIME,
    SYNC,
    Category,
    Event,
)
from stepsight.trace.files import TraceFile, collector_off, decoded, mended, salvaged


class ProcessGroup(msgspec.Struct, frozen=True):
    """One entry of ``distributedInfo.pg_config``."""

    pg_name: str = ""
    ranks: tuple[int, ...] = ()


class DistributedInfo(msgspec.Struct, frozen=True):
    """Who this rank was."""

    rank: int = 0
    world_size: int = 1
    backend: str = ""
    pg_config: tuple[ProcessGroup, ...] | None = None


class _Document(msgspec.Struct):
    traceEvents: list[Event] = []  # noqa: N815
    distributedInfo: DistributedInfo | None = None  # noqa: N815
    deviceProperties: list[dict[str, Any]] = []  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """One rank's profile, its events by kind and in time order.

    ``base_us`` plus an event's ``ts`` is wall-clock time, comparable between the ranks of a host.
    """

    path: str
    host_ops: list[Event]
    annotations: list[Event]
    runtime: list[Event]
    gpu: list[Event]
    syncs: list[Event]
    distributed: DistributedInfo | None
    devices: tuple[str, ...]
    base_us: float = 0.0
    memory_gb: float | None = None
    device_properties: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=())

    @property
    def rank(self) -> int | None:
        return self.distributed.rank if self.distributed else None

    @property
    def world_size(self) -> int:
        """Ranks of the run: as many as it says, and no fewer than its process groups name."""
        if self.distributed is None:
            return 1
        named = (rank for group in self.distributed.pg_config or () for rank in group.ranks)
        return max(self.distributed.world_size, 1, max(named, default=0) + 1)

    @property
    def device(self) -> str:
        """The name of the GPU, or "" where the trace does not say."""
        return self.devices[0] if self.devices else ""


LONGEST_US, LATEST_US = 86_400e6, 2.0**62
"""No event lasts a day; later times than this are no times."""
MOST_AT_ONCE = 2
_DECODER = msgspec.json.Decoder(_Document)
_LENIENT = msgspec.json.Decoder(Event, strict=False)
_LIST_DECODER = msgspec.json.Decoder(list[Event])


def looks_like_kineto(content: bytes) -> bool:
    """Whether the bytes are a Chrome trace."""
    head = content[:4096].lstrip()
    return b'"traceEvents"' in content[:2_000_000] or (head[:1] == b"[" and b'"ph"' in head)


HEAD_BYTES = 4096
_PREDICTED = re.compile(rb'"generator":\s*"stepsight"')


def read_kineto(file: TraceFile) -> KinetoTrace:
    """Decode one profiler trace; broken files give what they hold, with a warning."""
    if _PREDICTED.search(file.content[:HEAD_BYTES]):
        problem = "is a timeline that stepsight predicted, not a trace that a profiler recorded"
        raise InputError(file.path, problem, "open it in Perfetto, or give torch.profiler's file")
    with collector_off():
        document, warnings = _decode(file)
        check_limit(len(document.traceEvents), "EVENTS", file.path, "its number of events")
        return _sorted_by_kind(file, document, (*file.warnings, *warnings))


def _decode(file: TraceFile) -> tuple[_Document, list[str]]:
    def whole(data: bytes) -> _Document:
        listed = data.lstrip()[:1] == b"["
        return _Document(_LIST_DECODER.decode(data)) if listed else _DECODER.decode(data)

    document = decoded(file, whole)
    return (document, []) if document is not None else _decode_loosely(file)


def _decode_loosely(file: TraceFile) -> tuple[_Document, list[str]]:
    """Event by event: one odd event must not cost the whole trace."""
    loose, lost_bytes = salvaged(mended(file.content))
    events: list[Event] = []
    odd = 0
    for item in loose.pop("traceEvents", []):
        try:
            events.append(_LENIENT.decode(msgspec.json.encode(item)))
        except msgspec.ValidationError:
            odd += 1
    if not events:
        raise InputError(file.path, "holds no profiler events that can be read", "export the trace again")
    warnings = []
    if lost_bytes:
        warnings.append(
            f"{file.name}: cut or broken JSON; {len(events)} events read, the last {lost_bytes} bytes lost"
        )
    if odd:
        warnings.append(f"{file.name}: left out {counted(odd, 'event')} with unexpected fields")
    try:
        document = msgspec.convert({**loose, "traceEvents": []}, _Document, strict=False)
    except msgspec.ValidationError:
        document = _Document()
    document.traceEvents = events
    return document, warnings


def _sorted_by_kind(file: TraceFile, document: _Document, warnings: tuple[str, ...]) -> KinetoTrace:
    kinds: dict[int, list[Event]] = {k: [] for k in (HOST_OP, ANNOTATION, RUNTIME, GPU, SYNC)}
    places: dict[Category, list[Event]] = {cat: kinds[kind] for cat, kind in CATEGORIES.items()}
    same: dict[int | str, int | str] = {}
    once = same.setdefault  # numbers recur thousands of times: one object of each is kept
    impossible = 0
    for event in document.traceEvents:
        if event.ph == "X":
            place = places.get(event.cat)
            if place is None:
                continue
            if not (0.0 <= event.dur < LONGEST_US and abs(event.ts) < LATEST_US):
                impossible += 1
                continue
            event.pid, event.tid = once(event.pid, event.pid), once(event.tid, event.tid)
            place.append(event)
    document.traceEvents = []
    if impossible:
        warnings = (
            *warnings,
            f"{file.name}: left out {counted(impossible, 'event')} with impossible times",
        )
    if not kinds[HOST_OP] and not kinds[RUNTIME] and not kinds[GPU]:
        raise InputError(
            file.path,
            "holds no operators, launches or kernels",
            "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    share_texts(event for events in kinds.values() for event in events)
    for events in kinds.values():
        in_time_order(events)
    repeated = sum(_drop_repeated(events) for events in kinds.values())
    if repeated:
        warnings = (*warnings, f"{file.name}: {counted(repeated, 'event')} listed twice, counted once")
    _check_times(file, kinds[GPU])
    _check_ranks(file, document.distributedInfo)
    if not kinds[HOST_OP]:
        warnings = (*warnings, f"{file.name}: no host operators were recorded; kernels stand alone")
    names = tuple(str(d.get("name", "")) for d in document.deviceProperties)
    return KinetoTrace(
        file.path, kinds[HOST_OP], kinds[ANNOTATION], kinds[RUNTIME], kinds[GPU], kinds[SYNC],
        document.distributedInfo, names, document.baseTimeNanoseconds / 1e3,
        _memory_gb(document), next(iter(document.deviceProperties), {}), warnings,
    )  # fmt: skip


def in_time_order(events: list[Event]) -> None:
    """Sort by start, what lasts longer first: two sorts by one number each are faster than one by pairs."""
    events.sort(key=attrgetter("dur"), reverse=True)
    events.sort(key=attrgetter("ts"))


def _drop_repeated(events: list[Event]) -> int:
    """Leave out, in place, events in time order that are listed a second time; how many these were."""
    kept: list[Event] = []
    same_time: set[tuple[object, ...]] = set()
    before: Event | None = None
    for event in events:
        if before is None or event.ts != before.ts or event.dur != before.dur:
            same_time = set()
        elif not same_time:
            same_time = {_identity(before)}
        if before is not None and event.ts == before.ts and event.dur == before.dur:
            identity = _identity(event)
            if identity in same_time:
                continue
            same_time.add(identity)
        kept.append(event)
        before = event
    dropped = len(events) - len(kept)
    if dropped:
        events[:] = kept
    return dropped


def _identity(event: Event) -> tuple[object, ...]:
    args = event.args
    numbers = args.correlation, args.external_id, args.record_id, args.sequence, args.stream
    return event.name, event.pid, event.tid, *numbers, event.sizes_text()


def _check_times(file: TraceFile, gpu: list[Event]) -> None:
    """Kernels of a stream run one after the other: they cannot all begin at once."""
    streams = {event.args.stream for event in gpu}
    if len(gpu) > MOST_AT_ONCE + len(streams) and gpu[0].ts == gpu[-1].ts:
        raise InputError(
            file.path, f"its {len(gpu)} kernels and copies all begin at the same time",
            "export the trace again: its times were lost",
        )  # fmt: skip


def _check_ranks(file: TraceFile, info: DistributedInfo | None) -> None:
    if info is None:
        return
    named = [rank for group in info.pg_config or () for rank in group.ranks]
    for field_name, values in (("rank", [info.rank]), ("pg_config", named)):
        if min(values, default=0) < 0:
            raise InputError(
                f"{file.path}: distributedInfo.{field_name}", f"names rank {min(values)}",
                "ranks count from zero: correct it, or remove distributedInfo",
            )  # fmt: skip
    ranks = max(info.world_size, info.rank + 1, max(named, default=0) + 1)
    check_limit(ranks, "RANKS", f"{file.path}: distributedInfo", "its number of ranks")


def _memory_gb(document: _Document) -> float | None:
    sizes = [d.get("totalGlobalMem") for d in document.deviceProperties]
    size = sizes[0] if sizes else None
    return size / BYTES_PER_GB if type(size) is int and 0 < size < MOST_BYTES else None


def share_texts(events: Iterable[Event]) -> None:
    """Make equal texts of these events one object; afterwards none of them refers to the file's content."""
    texts: dict[str, str] = {}
    lists: dict[bytes, msgspec.Raw] = {}

    def kept(raw: msgspec.Raw) -> msgspec.Raw:
        text = bytes(raw)
        known = lists.get(text)
        if known is None:
            known = lists[text] = msgspec.Raw(text)
        return known

    for event in events:
        event.name = texts.setdefault(event.name, event.name)
        args = event.args
        if args is NO_ARGS:
            continue
        if args.dims is not NO_RAW:
            force_setattr(args, "dims", kept(args.dims))
        if args.old_dims is not NO_RAW:
            force_setattr(args, "old_dims", kept(args.old_dims))
        if args.types is not NO_RAW:
            force_setattr(args, "types", kept(args.types))
        if args.concrete is not NO_RAW:
            force_setattr(args, "concrete", kept(args.concrete))
        if args.grid is not NO_RAW:
            force_setattr(args, "grid", kept(args.grid))
        if args.block is not NO_RAW:
            force_setattr(args, "block", kept(args.block))
