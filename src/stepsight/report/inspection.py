"""An inspection as tables on the console and as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from stepsight.prediction.traced.inspection import Inspection

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1f24;"
    "background:#fff}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}"
    "td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #e4e7eb}td:first-child,th:first-child"
    "{text-align:left}.bar{background:#3b82b6;height:.7rem;display:inline-block}"
    "@media(prefers-color-scheme:dark){body{background:#14171a;color:#dde2e7}td,th{border-color:#2b3138}}"
)


@dataclass(frozen=True, slots=True)
class Listing:
    """A titled table of text; the first column is the name."""

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
    """The facts in sentences."""
    said = [
        f"{len(seen.files)} of {seen.world_size} ranks, {seen.device or 'GPU not named'}",
        f"step time {milliseconds(seen.measured_us)} (GPU timeline; steps found by {seen.found_by})",
        f"{seen.link_rate:.1%} of kernels linked to their operator",
        f"{seen.orphans} kernels were launched before the recording began",
    ]
    if seen.straggler is not None:
        said.append(f"rank {seen.straggler} is the one the others wait for")
    return said + [f"note: {w}" for w in seen.warnings]


def milliseconds(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


def show(seen: Inspection) -> None:
    """Print to the console."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for line in headline(seen):
        console.print(line)
    for listing in listings(seen):
        table = Table(title=listing.title, title_justify="left", box=None, padding=(0, 1))
        for i, column in enumerate(listing.columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=bool(i))
        for row in listing.rows:
            table.add_row(*row)
        console.print(table)


def as_page(seen: Inspection) -> str:
    """The same as HTML that needs nothing else."""
    parts = [f"<!doctype html><meta charset=utf-8><title>stepsight inspect</title><style>{_STYLE}</style>"]
    parts.append("<h1>Inside the trace</h1>" + "".join(f"<p>{escape(line)}</p>" for line in headline(seen)))
    for listing in listings(seen):
        head = "".join(f"<th>{escape(c)}</th>" for c in listing.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in listing.rows
        )
        parts.append(f"<h2>{escape(listing.title)}</h2><table><tr>{head}</tr>{body}</table>")
    return "\n".join(parts) + "\n"


def _rows(items: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row) for row in items)


def _steps(seen: Inspection) -> Listing:
    rows = _rows(
        (f"rank {s.rank} {s.name}", milliseconds(s.host_us),
         milliseconds(s.gpu_period_us) if s.gpu_period_us else "", "allocation storm" if s.storm else "")
        for s in seen.steps
    )  # fmt: skip
    return Listing("steps", ("step", "host range", "GPU period to the next", ""), rows)


def _ranks(seen: Inspection) -> Listing:
    columns = ("rank", "span", "busy", "idle", "comm.", "exposed", "waiting", "host sync", "starts late")
    rows = _rows(
        (str(r.rank), *(milliseconds(x) for x in (
            r.span_us, r.busy_us, r.idle_us, r.communication_us, r.exposed_communication_us, r.waiting_us,
            r.host_sync_us, r.start_late_us)))
        for r in seen.ranks
    )  # fmt: skip
    return Listing("ranks, typical step", columns, rows)


def _path(seen: Inspection) -> Listing:
    whole = sum(seen.critical_path_us.values()) or 1.0
    rows = _rows((k, milliseconds(v), f"{v / whole:.1%}") for k, v in seen.critical_path_us.items())
    return Listing("critical path of the rank the others wait for", ("part", "time", "share"), rows)


def _operators(seen: Inspection) -> Listing:
    rows = _rows(
        (o.name, str(o.count), milliseconds(o.host_us), milliseconds(o.gpu_us)) for o in seen.operators
    )
    return Listing("top operators", ("operator", "count", "host", "GPU"), rows)


def _kernels(seen: Inspection) -> Listing:
    rows = _rows((k.name, str(k.count), milliseconds(k.gpu_us)) for k in seen.kernels)
    return Listing("top kernels", ("kernel", "count", "GPU"), rows)


def _overheads(seen: Inspection) -> Listing:
    columns = ("operator", "count", "T1", "T2", "T3", "T4", "T5", "spread")
    rows = _rows(
        (o.name, str(o.count), *(f"{x:.1f}" for x in (o.t1_us, o.t2_us, o.t3_us, o.t4_us, o.t5_us)),
         f"{o.spread:.0%}")
        for o in seen.overheads
    )  # fmt: skip
    return Listing("host overheads in µs, profiler taken out", columns, rows)


def _coverage(seen: Inspection) -> Listing:
    rows = _rows((source, f"{share:.1%}") for source, share in seen.coverage.items())
    return Listing("what would time the kernels", ("source", "share of kernel time"), rows)
