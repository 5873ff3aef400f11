"""What a trace shows: where the step goes on every rank, why GPUs idle, what overlaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from stepsight.prediction.display import look, share, source_look, time
from stepsight.prediction.traced.inspection import Inspection, RankView
from stepsight.report.pieces import (
    Bar,
    Cell,
    Fragment,
    Html,
    Listing,
    figures,
    frame,
    headline,
    joined,
    notes,
    searchable,
    section,
    show_lines,
    show_listing,
    tag,
)
from stepsight.terminal import counted
from stepsight.trace.steps import NO_MARKS

MOST_RANKS = 64
SEARCHED = 8
"""Rows from which on a table of a page has a box to filter them."""


def show(seen: Inspection, console: Console) -> None:
    """Print to the console."""
    device = device_of(seen)
    show_lines([f"{len(seen.files)} of {counted(seen.world_size, 'rank')}, {device}", *facts(seen)], console)
    show_lines((f"note: {w}" for w in seen.warnings), console)
    for one in (*([] if seen.cpu_only else [_ranks(seen), _path(seen)]), *listings(seen)):
        show_listing(one, console)


def inspection_page(seen: Inspection) -> str:
    """The page of ``stepsight inspect``."""
    device = device_of(seen, "a GPU that the trace does not name")
    charts = [_where(seen), _idle(seen), _overlap(seen), _path(seen)]
    sections = [one.section() for one in charts if one.rows]
    for one in listings(seen):
        body = searchable(one.columns[0], one.html()) if len(one.rows) > SEARCHED else one.html()
        sections.append(section(one.title[:1].upper() + one.title[1:], body))
    if seen.warnings:
        sections.append(section("Notes", notes(seen.warnings)))
    return frame(f"trace: {time(seen.measured_us)} per step on {device}", _top(seen, device), sections)


def device_of(seen: Inspection, unnamed: str = "GPU not named") -> str:
    """What the trace was recorded on."""
    return "a CPU" if seen.cpu_only else seen.device or unnamed


def facts(seen: Inspection) -> list[str]:
    """Step time, how it was found, what is missing from the recording."""
    found = (
        "no step marks: the whole trace counts as one step"
        if seen.found_by == NO_MARKS
        else f"steps found by {seen.found_by}"
    )
    if seen.cpu_only:
        return [
            f"Step time {time(seen.measured_us)} on the host ({found}).",
            "A trace of a CPU: no GPU work was recorded (ProfilerActivity.CUDA records it).",
        ]
    lines = [
        f"Step time {time(seen.measured_us)} on the GPU timeline ({found}).",
        f"{share(seen.link_rate)} of kernels are linked to their operator.",
    ]
    if seen.orphans:
        lines.append(f"{counted(seen.orphans, 'kernel')} launched before the recording began.")
    if seen.straggler is not None:
        lines.append(f"Rank {seen.straggler} is the straggler: the others wait for it.")
    return lines


def listings(seen: Inspection) -> list[Listing]:
    """What the terminal and the page both list; empty tables are left out."""
    steps = [
        (f"rank {s.rank} {s.name}", time(s.host_us), time(s.gpu_period_us) if s.gpu_period_us else "",
         "allocation storm" if s.storm else "")
        for s in seen.steps
    ]  # fmt: skip
    operators = [(o.name, str(o.count), time(o.host_us), time(o.gpu_us)) for o in seen.operators]
    kernels = [(k.name, str(k.count), time(k.gpu_us)) for k in seen.kernels]
    overheads = [
        (o.name, str(o.count), *(f"{x:.1f}" for x in (o.t1_us, o.t2_us, o.t3_us, o.t4_us, o.t5_us)),
         f"{100 * o.spread:.0f} %")
        for o in seen.overheads
    ]  # fmt: skip
    made = [
        Listing("steps", ("step", "host range", "GPU period to the next", "remark"), steps, ("remark",)),
        Listing("top operators", ("operator", "count", "host", "GPU"), operators),
        Listing("top kernels", ("kernel", "count", "GPU"), kernels),
        Listing(
            "host overheads in µs, without the profiler's own cost",
            ("operator", "count", "before it", "to its first launch", "after its last", "per launch",
             "between launches", "spread"),
            overheads,
        ),
        Listing(
            "which models would time the kernels", ("source", "share of kernel time"),
            [(source_look(source).word, share(part)) for source, part in seen.coverage.items()],
        ),
    ]  # fmt: skip
    return [one for one in made if one.rows]


def _ranks(seen: Inspection) -> Listing:
    columns = ("rank", "step", "busy", "idle", "comm.", "exposed", "waiting", "host sync", "starts late")
    rows = [
        (str(r.rank), *map(time, (
            r.span_us, r.busy_us, r.idle_us, r.communication_us, r.exposed_communication_us, r.waiting_us,
            r.host_sync_us, r.start_late_us)))
        for r in seen.ranks
    ]  # fmt: skip
    return Listing("ranks: the step on the GPU timeline", columns, rows)


def _path(seen: Inspection) -> Listing:
    whole = sum(seen.critical_path_us.values()) or 1.0
    rows = [(look(name).word, time(us), share(us / whole)) for name, us in seen.critical_path_us.items()]
    title = "critical path" + (" of the rank the others wait for" if seen.straggler is not None else "")
    return Listing(title, ("part", "time", "share"), rows)


def _top(seen: Inspection, device: str) -> Html:
    whole = sum(r.span_us for r in seen.ranks) or 1.0
    idle, exposed = sum(r.idle_us for r in seen.ranks), sum(r.exposed_communication_us for r in seen.ranks)
    waiting = sum(r.waiting_us for r in seen.ranks)
    covered = f"and {share(waiting / whole)} waiting" if waiting else "not covered by compute"
    entries = [
        ("ranks", f"{len(seen.ranks)}", f"of {seen.world_size}"),
        ("GPU busy", share(1 - idle / whole), "mean over ranks"),
        ("exposed communication", share(exposed / whole), covered),
        ("kernels linked", share(seen.link_rate), "to the operator that launched them"),
    ]
    return joined([
        tag("h1", "trace", tag("span", " of ", classes="on"), device),
        tag("div", headline(seen.measured_us), classes="headline"),
        tag("p", " ".join(facts(seen)), classes="verdict"), figures(entries),
    ])  # fmt: skip


Part = tuple[str, float, str]
"""A word, µs and a colour."""
Figures = Iterable[tuple[str, Callable[[RankView], str]]]


def _by_rank(
    title: str, ranks: Sequence[RankView], parts: Callable[[RankView], Sequence[Part]], figures: Figures,
    lead: str, total: float = 0.0,
) -> Listing:  # fmt: skip
    """A bar for each rank, with figures after it."""
    rows: list[tuple[Cell, ...]] = []
    for r in ranks[:MOST_RANKS]:
        drawn = tuple(
            Fragment(word, us, f"{time(us)}, {share(us / (r.span_us or 1.0))}", c) for word, us, c in parts(r)
        )
        name = f"rank\u00a0{r.rank}"
        rows.append((name, Bar(drawn, total, name), *(made(r) for _, made in figures)))
    return Listing(title, ("rank", "", *(word for word, _ in figures)), rows, lead=lead)


def _split(r: RankView) -> list[Part]:
    """A rank's step in four parts that add up to it."""
    compute = max(r.busy_us - r.exposed_communication_us - r.waiting_us, 0.0)
    return [
        ("compute", compute, "compute"),
        ("communication, exposed", r.exposed_communication_us, "communication"),
        ("waiting for other ranks", r.waiting_us, "waiting"), ("idle", r.idle_us, "idle"),
    ]  # fmt: skip


def _where(seen: Inspection) -> Listing:
    columns = (
        ("step", lambda r: time(r.span_us)), ("compute", lambda r: time(_split(r)[0][1])),
        ("exposed", lambda r: time(_split(r)[1][1])), ("waiting", lambda r: time(_split(r)[2][1])),
        ("idle", lambda r: time(r.idle_us)),
        ("starts late", lambda r: time(r.start_late_us) if r.start_late_us else ""),
    )  # fmt: skip
    lead = "The typical step of every rank on its GPU's timeline."
    longest = max((r.span_us for r in seen.ranks), default=0.0)
    return _by_rank("where the step goes, by rank", seen.ranks, _split, columns, lead, longest)


def _idle(seen: Inspection) -> Listing:
    """Idle time by what the host did meanwhile."""

    def parts(r: RankView) -> Sequence[Part]:
        synced = min(r.host_sync_us, r.idle_us)
        return [
            ("at most this much after the host waited for the GPU", synced, "copy"),
            ("the host had not launched yet", r.idle_us - synced, "idle"),
        ]

    lead = (
        "After a synchronisation (.item(), a blocking copy) the GPU has nothing queued: it idles until the "
        "host launches again. The rest is the host being slower than the GPU."
    )
    columns = (("idle", lambda r: time(r.idle_us)), ("host waits", lambda r: time(r.host_sync_us)))
    longest = max((r.idle_us for r in seen.ranks), default=0.0)
    return _by_rank("why the GPU idles", seen.ranks if longest > 0 else (), parts, columns, lead, longest)


def _overlap(seen: Inspection) -> Listing:
    def hidden(r: RankView) -> float:
        return max(r.communication_us - r.exposed_communication_us - r.waiting_us, 0.0)

    def parts(r: RankView) -> Sequence[Part]:
        return [("overlapped with compute", hidden(r), "compute"), *_split(r)[1:3]]

    columns = (
        ("communication", lambda r: time(r.communication_us)),
        ("overlapped", lambda r: share(hidden(r) / r.communication_us)),
    )
    lead = "How much of the communication runs while the GPU computes."
    return _by_rank("overlap", [r for r in seen.ranks if r.communication_us > 0], parts, columns, lead)
