"""The ranks side by side: who computes, who communicates, who waits."""

from __future__ import annotations

from collections.abc import Sequence

from stepsight.prediction.answer import Prediction
from stepsight.prediction.breakdown import EXPOSED, IDLE, WAITING, RankSummary
from stepsight.prediction.display import look, share, time
from stepsight.report.page.pieces import Column, Fragment, Html, bar, legend, section, table, tag
from stepsight.report.ranks import RankSet

MOST_BARS = 16
"""Ranks that differ get a bar each up to here; beyond, a strip shows them all at once."""
STRIP_HEIGHT = 100.0
MATTERS = 0.05
"""Waiting below this share of a step is not worth a sentence."""


def rank_section(prediction: Prediction, sets: Sequence[RankSet]) -> Html:
    """A bar for each rank that differs, or a strip of all and the few that stand out."""
    ranks = prediction.ranks
    longest = max((r.step_us for r in ranks), default=0.0) or 1.0
    key = legend(Fragment(word, 0.0, "", colour) for word, colour, _ in _split(ranks[0]))
    if len(sets) <= MOST_BARS:
        names = [f"all {len(ranks):,}"] if len(sets) == 1 < len(ranks) else [a.label for a in sets]
        named = [(name, ranks[a.first]) for name, a in zip(names, sets, strict=True)]
        return section("Ranks", _bars(named, longest), key, lead=_lead(sets, ranks))
    by_compute = sorted(ranks, key=lambda r: (r.compute_us, r.rank))
    telling = [
        (f"busiest, rank {by_compute[-1].rank:,}", by_compute[-1]),
        (f"median, rank {by_compute[len(ranks) // 2].rank:,}", by_compute[len(ranks) // 2]),
        (f"least busy, rank {by_compute[0].rank:,}", by_compute[0]),
    ]
    return section("Ranks", _strip(ranks, longest), key, _bars(telling, longest), lead=_lead(sets, ranks))


def _lead(sets: Sequence[RankSet], ranks: Sequence[RankSummary]) -> str:
    if len(ranks) == 1:
        return "One rank."
    if len(sets) == 1:
        return f"All {len(ranks):,} ranks do the same at the same time."
    compute = [r.compute_us for r in ranks]
    sentence = (
        f"Compute takes {time(min(compute))} on the least busy rank and {time(max(compute))} on the busiest."
    )
    last = min(ranks, key=lambda r: (r.rank_wait_us, r.rank))
    longest_wait = max(r.rank_wait_us for r in ranks)
    if longest_wait - last.rank_wait_us >= MATTERS * last.step_us:
        sentence += f" Rank {last.rank:,} waits least: the others wait for it, up to {time(longest_wait)}."
    return sentence


def _split(r: RankSummary) -> list[tuple[str, str, float]]:
    """A rank's step in four parts that add up to it: word, colour, µs."""
    return [
        ("compute", "compute", r.compute_us),
        (look(EXPOSED).word, "communication", r.exposed_communication_us),
        (look(WAITING).word, "waiting", r.rank_wait_us),
        (look(IDLE).word, "idle", r.idle_us),
    ]


def _bars(named: Sequence[tuple[str, RankSummary]], longest: float) -> Html:
    columns = [
        Column("rank"), Column("", wide=True), Column("step", number=True), Column("compute", number=True),
        Column("exposed", number=True, extra=True), Column("waiting", number=True, extra=True),
        Column("idle", number=True, extra=True),
    ]  # fmt: skip
    rows = []
    for name, r in named:
        parts = [
            Fragment(w, us, f"{time(us)}, {share(us / (r.step_us or 1.0))}", c) for w, c, us in _split(r)
        ]
        _, exposed, waiting, idle = (time(us) for _, _, us in _split(r))
        drawn = bar(parts, total=longest, name=name, thin=True)
        rows.append(
            (
                name.replace("rank ", "rank\u00a0"),
                drawn,
                time(r.step_us),
                time(r.compute_us),
                exposed,
                waiting,
                idle,
            )
        )
    return table(columns, rows)


def _strip(ranks: Sequence[RankSummary], longest: float) -> Html:
    """All ranks from left to right as stacked areas, one path a part."""
    base = [0.0] * len(ranks)
    drawn = []
    for index, (word, colour, _) in enumerate(_split(ranks[0])):
        top = [b + _split(r)[index][2] for b, r in zip(base, ranks, strict=True)]
        shape = _area(base, top, longest)
        drawn.append(Html(f'<path class="c-{_flat(colour)}" d="{shape}"><title>{word}</title></path>'))
        base = top
    label = f"{len(ranks)} ranks from left to right, each split into compute, communication, waiting and idle"
    strip = Html(
        f'<svg class="strip" viewBox="0 0 {len(ranks)} {STRIP_HEIGHT:.0f}" preserveAspectRatio="none" '
        f'role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    )
    return Html(strip + tag("p", f"rank 0 on the left, rank {len(ranks) - 1:,} on the right", classes="soft"))


def _flat(colour: str) -> str:
    """An area cannot be hatched by a style's gradient, so waiting has a plain colour here."""
    return "waiting-flat" if colour == "waiting" else colour


def _area(base: Sequence[float], top: Sequence[float], longest: float) -> str:
    def y(us: float) -> str:
        return f"{STRIP_HEIGHT * (1 - us / longest):.1f}"

    ahead = "".join(f"V{y(us)}H{i + 1}" for i, us in enumerate(top))
    back = "".join(f"V{y(base[i])}H{i}" for i in reversed(range(len(base))))
    return f"M0 {y(base[0])}{ahead}{back}Z"
