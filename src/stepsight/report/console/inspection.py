"""What a trace shows, as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console

from stepsight import terminal
from stepsight.prediction.traced.inspection import Inspection
from stepsight.trace.step.steps import NO_MARKS


@dataclass(frozen=True, slots=True)
class Listing:
    """A titled table of text; the first column is the name."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def listings(seen: Inspection) -> list[Listing]:
    """Everything there is to show, table by table; empty ones are left out."""
    made = [
        _steps(seen),
        _ranks(seen),
        _path(seen),
        _operators(seen),
        _kernels(seen),
        _overheads(seen),
        _coverage(seen),
    ]
    return [listing for listing in made if listing.rows]


def headline(seen: Inspection) -> list[str]:
    """The facts in lines, notes last."""
    lines = [
        f"{len(seen.files)} of {seen.world_size} ranks, {device_of(seen)}",
        *headline_facts(seen),
    ]
    return lines + [f"note: {w}" for w in seen.warnings]


def device_of(seen: Inspection, unnamed: str = "GPU not named") -> str:
    """What the trace was recorded on."""
    return "a CPU" if seen.cpu_only else seen.device or unnamed


def headline_facts(seen: Inspection) -> list[str]:
    """Step time, how it was found, what is missing from the recording."""
    found = (
        "no step marks: the whole trace counts as one step"
        if seen.found_by == NO_MARKS
        else f"steps found by {seen.found_by}"
    )
    if seen.cpu_only:
        return [
            f"Step time {milliseconds(seen.measured_us)} on the host ({found}).",
            "A trace of a CPU: no GPU work was recorded (ProfilerActivity.CUDA records it).",
        ]
    lines = [
        f"Step time {milliseconds(seen.measured_us)} on the GPU timeline ({found}).",
        f"{100 * seen.link_rate:.1f} % of kernels are linked to their operator.",
    ]
    if seen.orphans:
        lines.append(f"{seen.orphans:,} kernels were launched before the recording began.")
    if seen.straggler is not None:
        lines.append(f"Rank {seen.straggler} is the straggler: the others wait for it.")
    return lines


def milliseconds(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


def show(seen: Inspection, console: Console) -> None:
    """Print to the console."""
    for line in headline(seen):
        console.print(line)
    for listing in listings(seen):
        console.print(terminal.listing(listing.columns, listing.rows, title=listing.title))


def _rows(items: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row) for row in items)


def _steps(seen: Inspection) -> Listing:
    rows = _rows(
        (f"rank {s.rank} {s.name}", milliseconds(s.host_us),
         milliseconds(s.gpu_period_us) if s.gpu_period_us else "", "allocation storm" if s.storm else "")
        for s in seen.steps
    )  # fmt: skip
    return Listing("steps", "steps", ("step", "host range", "GPU period to the next", ""), rows)


def _ranks(seen: Inspection) -> Listing:
    if seen.cpu_only:
        return Listing("ranks", "", (), ())
    columns = ("rank", "span", "busy", "idle", "comm.", "exposed", "waiting", "host sync", "starts late")
    rows = _rows(
        (str(r.rank), *(milliseconds(x) for x in (
            r.span_us, r.busy_us, r.idle_us, r.communication_us, r.exposed_communication_us, r.waiting_us,
            r.host_sync_us, r.start_late_us)))
        for r in seen.ranks
    )  # fmt: skip
    return Listing("ranks", "ranks, typical step", columns, rows)


def _path(seen: Inspection) -> Listing:
    whole = sum(seen.critical_path_us.values()) or 1.0
    rows = _rows((k, milliseconds(v), f"{100 * (v / whole):.1f} %") for k, v in seen.critical_path_us.items())
    return Listing("path", "critical path of the rank the others wait for", ("part", "time", "share"), rows)


def _operators(seen: Inspection) -> Listing:
    rows = _rows(
        (o.name, str(o.count), milliseconds(o.host_us), milliseconds(o.gpu_us)) for o in seen.operators
    )
    return Listing("operators", "top operators", ("operator", "count", "host", "GPU"), rows)


def _kernels(seen: Inspection) -> Listing:
    rows = _rows((k.name, str(k.count), milliseconds(k.gpu_us)) for k in seen.kernels)
    return Listing("kernels", "top kernels", ("kernel", "count", "GPU"), rows)


def _overheads(seen: Inspection) -> Listing:
    columns = ("operator", "count", "T1", "T2", "T3", "T4", "T5", "spread")
    rows = _rows(
        (o.name, str(o.count), *(f"{x:.1f}" for x in (o.t1_us, o.t2_us, o.t3_us, o.t4_us, o.t5_us)),
         f"{100 * o.spread:.0f} %")
        for o in seen.overheads
    )  # fmt: skip
    return Listing("overheads", "host overheads in µs, without the profiler's own cost", columns, rows)


def _coverage(seen: Inspection) -> Listing:
    rows = _rows((source, f"{100 * share:.1f} %") for source, share in seen.coverage.items())
    return Listing(
        "coverage", "which models would time the kernels", ("source", "share of kernel time"), rows
    )
