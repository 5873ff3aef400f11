"""What a trace shows, as a page: where the step goes on every rank, why GPUs idle, what overlaps."""

from __future__ import annotations

from stepsight.prediction.display import share, time
from stepsight.prediction.traced.inspection import Inspection, RankView
from stepsight.report.console.inspection import Listing, device_of, headline_facts, listings
from stepsight.report.page.pieces import (
    Column,
    Fragment,
    Html,
    asset,
    bar,
    figures,
    frame,
    joined,
    legend,
    notes,
    section,
    small_bar,
    table,
    tag,
)

MOST_RANKS = 64


def inspection_page(seen: Inspection, *, command: str = "") -> str:
    """The page of ``stepsight inspect``."""
    title = (
        f"trace: {time(seen.measured_us)} per step on {device_of(seen, 'a GPU that the trace does not name')}"
    )
    sections = [_ranks(seen), _idle(seen), _overlap(seen), _path(seen)]
    sections += [_listing(one) for one in listings(seen) if one.name not in ("ranks", "path")]
    if seen.warnings:
        sections.append(section("Notes", notes(seen.warnings)))
    script = Html(f"<script>\n{asset('filter.js')}</script>")
    return frame(title, _top(seen), [s for s in sections if s], scripts=[script], command=command)


def _top(seen: Inspection) -> Html:
    value, unit = time(seen.measured_us).rsplit(" ", 1)
    number = tag("div", value, " ", tag("small", f"{unit} per step"), classes="number")
    heading = tag(
        "h1", "trace", tag("span", " of ", classes="on"), device_of(seen, "a GPU that it does not name")
    )
    whole = sum(r.span_us for r in seen.ranks) or 1.0
    idle, exposed = sum(r.idle_us for r in seen.ranks), sum(r.exposed_communication_us for r in seen.ranks)
    entries = [
        ("ranks", f"{len(seen.ranks)}", f"of {seen.world_size}"),
        ("GPU busy", share(1 - idle / whole), "mean over ranks"),
        ("exposed communication", share(exposed / whole), "no compute at the same time"),
        ("kernels linked", share(seen.link_rate), "to the operator that launched them"),
    ]
    facts = tag("p", " ".join(headline_facts(seen)), classes="verdict")
    return joined([heading, tag("div", number, classes="headline"), facts, figures(entries)])


def _parts(r: RankView) -> list[Fragment]:
    """A rank's step in four parts that add up to it."""
    waiting = min(r.waiting_us, r.exposed_communication_us)
    compute = max(r.busy_us - r.exposed_communication_us, 0.0)
    values = [
        ("compute", compute, "compute"),
        ("communication, exposed", r.exposed_communication_us - waiting, "communication"),
        ("waiting for other ranks", waiting, "waiting"), ("idle", r.idle_us, "idle"),
    ]  # fmt: skip
    return [
        Fragment(word, us, f"{time(us)}, {share(us / (r.span_us or 1.0))}", colour)
        for word, us, colour in values
    ]


def _ranks(seen: Inspection) -> Html:
    longest = max((r.span_us for r in seen.ranks), default=0.0) or 1.0
    columns = [
        Column("rank"), Column("", wide=True), Column("step", number=True), Column("busy", number=True),
        Column("exposed", number=True, extra=True), Column("starts late", number=True, extra=True),
    ]  # fmt: skip
    rows = [
        (f"rank\u00a0{r.rank}", bar(_parts(r), total=longest, name=f"rank {r.rank}", thin=True),
         time(r.span_us), time(r.busy_us), time(r.exposed_communication_us), time(r.start_late_us))
        for r in seen.ranks[:MOST_RANKS]
    ]  # fmt: skip
    key = legend(Fragment(p.word, 0, "", p.colour) for p in _parts(seen.ranks[0]))
    lead = "The typical step of every rank on its GPU's timeline."
    if seen.straggler is not None:
        lead += f" Rank {seen.straggler} is the straggler: the others wait for it."
    return section("Where the step goes, by rank", table(columns, rows), key, lead=lead)


def _idle(seen: Inspection) -> Html | None:
    """Idle time by what the host did meanwhile."""
    longest = max((r.idle_us for r in seen.ranks), default=0.0)
    if longest <= 0:
        return None
    columns = [
        Column("rank"),
        Column("", wide=True),
        Column("idle", number=True),
        Column("host waits", number=True),
    ]
    rows = []
    for r in seen.ranks[:MOST_RANKS]:
        synced = min(r.host_sync_us, r.idle_us)
        parts = [
            Fragment("host waited for the GPU", synced, time(synced), "copy"),
            Fragment("host had not launched yet", r.idle_us - synced, time(r.idle_us - synced), "idle"),
        ]
        rows.append(
            (
                f"rank\u00a0{r.rank}",
                bar(parts, total=longest, name=f"rank {r.rank}", thin=True),
                time(r.idle_us),
                time(r.host_sync_us),
            )
        )
    key = legend(
        [
            Fragment("at most this much after the host waited for the GPU", 0, "", "copy"),
            Fragment("the host had not launched yet", 0, "", "idle"),
        ]
    )
    lead = (
        "After a synchronisation (.item(), a blocking copy) the GPU has nothing queued: it idles until the "
        "host launches again. The rest is the host being slower than the GPU."
    )
    return section("Why the GPU idles", table(columns, rows), key, lead=lead)


def _overlap(seen: Inspection) -> Html | None:
    communicating = [r for r in seen.ranks[:MOST_RANKS] if r.communication_us > 0]
    if not communicating:
        return None
    columns = [
        Column("rank"),
        Column("", wide=True),
        Column("communication", number=True),
        Column("overlapped", number=True),
    ]
    rows = []
    for r in communicating:
        hidden = max(r.communication_us - r.exposed_communication_us, 0.0)
        parts = [
            Fragment("overlapped with compute", hidden, time(hidden), "compute"),
            Fragment(
                "exposed", r.exposed_communication_us, time(r.exposed_communication_us), "communication"
            ),
        ]
        rows.append(
            (
                f"rank\u00a0{r.rank}",
                bar(parts, name=f"rank {r.rank}", thin=True),
                time(r.communication_us),
                share(hidden / r.communication_us),
            )
        )
    key = legend(
        [Fragment("overlapped with compute", 0, "", "compute"), Fragment("exposed", 0, "", "communication")]
    )
    return section(
        "Overlap",
        table(columns, rows),
        key,
        lead="How much of the communication runs while the GPU computes.",
    )


def _path(seen: Inspection) -> Html | None:
    whole = sum(seen.critical_path_us.values())
    if whole <= 0:
        return None
    columns = [
        Column("part"),
        Column("", wide=True),
        Column("time", number=True),
        Column("share", number=True),
    ]
    longest = max(seen.critical_path_us.values())
    rows = [
        (name, small_bar(us / longest), time(us), share(us / whole))
        for name, us in seen.critical_path_us.items()
    ]
    lead = "The chain of work that sets the length of the step, on the rank that the others wait for."
    return section("Critical path", table(columns, rows), lead=lead)


def _listing(one: Listing) -> Html:
    columns = [Column(title, number=i > 0) for i, title in enumerate(one.columns)]
    search = Html(
        f'<input type="search" class="filter" placeholder="find" aria-label="find in {one.name}" '
        f'data-filter="list-{one.name}">'
        if len(one.rows) > 8 else ""
    )  # fmt: skip
    body = Html(f'<div id="list-{one.name}">{table(columns, one.rows)}</div>')
    return section(one.title[:1].upper() + one.title[1:], search, body)
