"""What a trace shows, as a page: where the step goes on every rank, why GPUs idle, what overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepsight.prediction.display import share, time
from stepsight.prediction.traced.inspection import Inspection, RankView
from stepsight.report.console.inspection import Listing, device_of, headline_facts, listings
from stepsight.report.page.pieces import (
    Fragment,
    Html,
    bar,
    figures,
    frame,
    headline,
    joined,
    legend,
    notes,
    searchable,
    section,
    small_bar,
    table,
    tag,
)

MOST_RANKS = 64


def inspection_page(seen: Inspection) -> str:
    """The page of ``stepsight inspect``."""
    device = device_of(seen, "a GPU that the trace does not name")
    sections = [_ranks(seen), _idle(seen), _overlap(seen), _path(seen)]
    sections += [_listing(one) for one in listings(seen) if one.name not in ("ranks", "path")]
    if seen.warnings:
        sections.append(section("Notes", notes(seen.warnings)))
    return frame(f"trace: {time(seen.measured_us)} per step on {device}", _top(seen, device), sections)


def _top(seen: Inspection, device: str) -> Html:
    whole = sum(r.span_us for r in seen.ranks) or 1.0
    idle, exposed = sum(r.idle_us for r in seen.ranks), sum(r.exposed_communication_us for r in seen.ranks)
    entries = [
        ("ranks", f"{len(seen.ranks)}", f"of {seen.world_size}"),
        ("GPU busy", share(1 - idle / whole), "mean over ranks"),
        ("exposed communication", share(exposed / whole), "no compute at the same time"),
        ("kernels linked", share(seen.link_rate), "to the operator that launched them"),
    ]
    return joined([
        tag("h1", "trace", tag("span", " of ", classes="on"), device),
        tag("div", headline(seen.measured_us), classes="headline"),
        tag("p", " ".join(headline_facts(seen)), classes="verdict"), figures(entries),
    ])  # fmt: skip


Part = tuple[str, float, str]
"""A word, µs and a colour."""


def _by_rank(
    title: str, ranks: Sequence[RankView], parts: Callable[[RankView], Sequence[Part]],
    columns: dict[str, Callable[[RankView], str]], *, lead: str, total: float | None = None,
) -> Html:  # fmt: skip
    """A bar for each rank, with figures after it and what the colours mean."""
    rows = []
    for r in ranks[:MOST_RANKS]:
        drawn = [
            Fragment(word, us, f"{time(us)}, {share(us / (r.span_us or 1.0))}", c) for word, us, c in parts(r)
        ]
        name = f"rank\u00a0{r.rank}"
        rows.append((name, bar(drawn, total=total, name=name, thin=True), *(f(r) for f in columns.values())))
    meaning = legend((word, colour) for word, _, colour in parts(ranks[0]))
    return section(title, table(("rank", "", *columns), rows), meaning, lead=lead)


def _ranks(seen: Inspection) -> Html:
    def parts(r: RankView) -> Sequence[Part]:
        waiting = min(r.waiting_us, r.exposed_communication_us)
        compute = max(r.busy_us - r.exposed_communication_us, 0.0)
        exposed = r.exposed_communication_us - waiting
        return [
            ("compute", compute, "compute"), ("communication, exposed", exposed, "communication"),
            ("waiting for other ranks", waiting, "waiting"), ("idle", r.idle_us, "idle"),
        ]  # fmt: skip

    columns: dict[str, Callable[[RankView], str]] = {
        "step": lambda r: time(r.span_us), "busy": lambda r: time(r.busy_us),
        "exposed": lambda r: time(r.exposed_communication_us), "starts late": lambda r: time(r.start_late_us),
    }  # fmt: skip
    lead = "The typical step of every rank on its GPU's timeline."
    if seen.straggler is not None:
        lead += f" Rank {seen.straggler} is the straggler: the others wait for it."
    longest = max((r.span_us for r in seen.ranks), default=0.0) or 1.0
    return _by_rank("Where the step goes, by rank", seen.ranks, parts, columns, lead=lead, total=longest)


def _idle(seen: Inspection) -> Html | None:
    """Idle time by what the host did meanwhile."""
    longest = max((r.idle_us for r in seen.ranks), default=0.0)
    if longest <= 0:
        return None

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
    columns: dict[str, Callable[[RankView], str]] = {
        "idle": lambda r: time(r.idle_us), "host waits": lambda r: time(r.host_sync_us)
    }  # fmt: skip
    return _by_rank("Why the GPU idles", seen.ranks, parts, columns, lead=lead, total=longest)


def _overlap(seen: Inspection) -> Html | None:
    communicating = [r for r in seen.ranks if r.communication_us > 0]
    if not communicating:
        return None

    def hidden(r: RankView) -> float:
        return max(r.communication_us - r.exposed_communication_us, 0.0)

    def parts(r: RankView) -> Sequence[Part]:
        exposed = r.exposed_communication_us
        return [("overlapped with compute", hidden(r), "compute"), ("exposed", exposed, "communication")]

    columns: dict[str, Callable[[RankView], str]] = {
        "communication": lambda r: time(r.communication_us),
        "overlapped": lambda r: share(hidden(r) / r.communication_us),
    }
    lead = "How much of the communication runs while the GPU computes."
    return _by_rank("Overlap", communicating, parts, columns, lead=lead)


def _path(seen: Inspection) -> Html | None:
    whole = sum(seen.critical_path_us.values())
    if whole <= 0:
        return None
    longest = max(seen.critical_path_us.values())
    rows = [
        (name, small_bar(us / longest), time(us), share(us / whole))
        for name, us in seen.critical_path_us.items()
    ]
    lead = "The chain of work that sets the length of the step, on the rank that the others wait for."
    return section("Critical path", table(("part", "", "time", "share"), rows), lead=lead)


def _listing(one: Listing) -> Html:
    body = table(one.columns, one.rows)
    shown = searchable(one.name, body) if len(one.rows) > 8 else body
    return section(one.title[:1].upper() + one.title[1:], shown)
