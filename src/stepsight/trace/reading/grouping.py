"""Which traces belong to one run: ranks of one job that began together. Runs are never mixed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepsight.errors import InputError
from stepsight.trace.constants import RANKS_START_TOGETHER_US
from stepsight.trace.reading.files import file_name
from stepsight.trace.reading.kineto import KinetoTrace

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Header:
    """Enough of a trace to know which run it belongs to."""

    path: str
    rank: int | None
    world_size: int
    device: str
    start_us: float

    @classmethod
    def of(cls, trace: KinetoTrace) -> Header:
        firsts = [events[0].ts for events in (trace.runtime, trace.host_ops, trace.gpu) if events]
        return cls(
            trace.path, trace.rank, trace.world_size, trace.device, trace.base_us + min(firsts, default=0.0)
        )


def runs_of(headers: Iterable[Header]) -> list[list[Header]]:
    """The traces by run, in order of their start; within a run one trace a rank."""
    groups: list[list[Header]] = []
    for header in sorted(headers, key=lambda h: (h.start_us, h.path)):
        fitting = [g for g in groups if _fits(g, header)]
        if fitting:
            min(fitting, key=lambda g: abs(g[0].start_us - header.start_us)).append(header)
        else:
            groups.append([header])
    return groups


def _fits(group: Sequence[Header], header: Header) -> bool:
    first = group[0]
    if abs(first.start_us - header.start_us) > RANKS_START_TOGETHER_US or first.device != header.device:
        return False
    if header.rank is None or first.rank is None:
        # Traces from before distributedInfo: ranks of one run only if nothing speaks against it.
        return header.rank is None and first.rank is None
    return first.world_size == header.world_size > 1 and all(h.rank != header.rank for h in group)


def without_copies(traces: Sequence[KinetoTrace]) -> tuple[list[KinetoTrace], list[str]]:
    """The traces, each once: one that lies there twice (packed and plain, say) is no second rank.

    Also returns what to say of those left out.
    """
    kept: dict[tuple[object, ...], KinetoTrace] = {}
    notes: list[str] = []
    for trace in traces:
        same = kept.setdefault(_content(trace), trace)
        if same is not trace:
            notes.append(f"{file_name(trace.path)} is a copy of {file_name(same.path)}: it counts once")
    return list(kept.values()), notes


def _content(trace: KinetoTrace) -> tuple[object, ...]:
    """What two recordings never share: who recorded, and when each kind of event first and last began."""
    kinds = (trace.host_ops, trace.annotations, trace.runtime, trace.gpu)
    spans = [(len(events), events[0].ts, events[-1].ts) if events else (0, 0.0, 0.0) for events in kinds]
    return trace.rank, trace.world_size, trace.device, trace.base_us, *spans


def one_run(traces: Sequence[KinetoTrace], where: str) -> list[KinetoTrace]:
    """The traces of a single run, by rank; refused with a list where there are several."""
    runs = runs_of(Header.of(t) for t in traces)
    if len(runs) > 1:
        named = "; ".join(f"{_ranks(run)} from {_below(run[0].path, where)}" for run in runs[:_SHOWN])
        more = f"; and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        raise InputError(
            where, f"holds {len(runs)} runs, which are not mixed ({named}{more})",
            "name the folder or the files of one run: --trace PATH, once for each file",
        )  # fmt: skip
    order = {h.path: (h.rank if h.rank is not None else i, h.path) for i, h in enumerate(runs[0])}
    return sorted(traces, key=lambda t: order[t.path])


def _ranks(run: Sequence[Header]) -> str:
    return f"{len(run)} of {max(run[0].world_size, len(run))} ranks"


def _below(path: str, folder: str) -> str:
    """A trace's path inside the folder that was named, or its name alone."""
    inside = path.removeprefix(f"{folder.rstrip('/')}/")
    return file_name(path) if inside == path or "::" in path else inside
