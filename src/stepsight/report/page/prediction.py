"""A prediction as one page: how long, why, who waits for whom, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepsight.estimate import Source
from stepsight.prediction.answer import Prediction
from stepsight.prediction.breakdown import EXPOSED, HOST, IDLE, WAITING, RankSummary, Sensitivity
from stepsight.prediction.display import (
    assumed,
    change,
    look,
    peak_words,
    rate_lines,
    share,
    size,
    source_look,
    time,
)
from stepsight.prediction.embedding import EmbeddingFigures
from stepsight.prediction.whole_run import WholeRun
from stepsight.report.page.pieces import (
    Fragment,
    Html,
    bar,
    figures,
    frame,
    headline,
    joined,
    legend,
    named,
    notes,
    searchable,
    section,
    small_bar,
    table,
    tag,
    term,
    text,
    warning,
)
from stepsight.report.page.timeline import picture
from stepsight.report.ranks import RankSet, identical_ranks
from stepsight.report.words import fits_words, grouped_notes, memory_word, sources_sentence

MATTERS = 0.05
"""A part whose removal shortens the step by less than this share does not hold it."""
SCALE_WIDTH = 520
_LARGEST = {
    IDLE: "the devices are idle: the host has not launched their work yet",
    EXPOSED: "is communication that no compute covers",
    WAITING: "goes into waiting for slower ranks",
}


def page(prediction: Prediction, run: WholeRun | None = None) -> str:
    """The whole page as HTML that needs no other file, with the whole run where one was asked for."""
    sets = identical_ranks(prediction.timeline)
    place, script = picture(prediction, sets)
    sections = [
        whole_run_section(run) if run else None,
        _breakdown(prediction),
        rank_section(prediction, sets),
        *(embedding_sections(prediction.embedding) if prediction.embedding else ()),
        section(
            "Timeline", place,
            lead="What the host and every stream do, and when. The host may run ahead of the step.",
        ),
        _memory(prediction),
        _trust(prediction),
    ]  # fmt: skip
    title = f"{prediction.workload or 'step'} on {prediction.platform}: {time(prediction.step_us)}"
    return frame(title, _top(prediction), sections, scripts=[script])


MOST_TABLES, MOST_RANKS_OF_TABLES = 400, 128
"""Tables and ranks that a page lists; ``--json`` has them all."""


def embedding_sections(figures: EmbeddingFigures) -> list[Html]:
    """Every table, hottest first, and what each rank looks up and sends; a click on a heading sorts."""
    titles = (
        "table", "time", "forward", "backward", "lookups", "distinct rows", "reuse", "cached rows",
        "from memory", "through L2", "sent", "ranks", "where",
    )  # fmt: skip
    rows = [
        (f.name, time(f.time_us), time(f.forward_us), time(f.backward_us), f"{f.lookups:,.0f}",
         f"{f.unique_rows:,.0f}", f"{f.reuse:.1f}", share(f.hit_rate), size(f.memory_bytes),
         size(f.cache_bytes), size(f.exchanged_bytes), _listed(f.ranks),
         f"{f.kind.replace('_', '-')}, {f.placement}")
        for f in figures.tables[:MOST_TABLES]
    ]  # fmt: skip
    listing = searchable("tables", table(titles, rows, left=("ranks", "where")), placeholder="find a table")
    cut = f" The first {MOST_TABLES} of {len(figures.tables):,}." if len(figures.tables) > MOST_TABLES else ""
    lead = f"Each table by itself, hottest first: one batch, forward and backward.{cut}"
    found = [section("Tables", listing, lead=lead)]
    if len(figures.ranks) > 1:
        found.append(_rank_loads(figures))
    return found


def _rank_loads(figures: EmbeddingFigures) -> Html:
    rows = [
        (str(r.rank), str(r.tables), time(r.forward_us + r.backward_us), f"{r.lookups:,.0f}",
         size(r.memory_bytes), size(r.sent_bytes), r.hottest)
        for r in figures.ranks[:MOST_RANKS_OF_TABLES]
    ]  # fmt: skip
    lead = f"The busiest rank looks up {share(figures.imbalance)} longer than the mean."
    titles = ("rank", "tables", "time", "lookups", "from memory", "sent", "hottest table")
    return section(
        "Lookups of each rank", searchable("ranks", table(titles, rows, left=("hottest table",))), lead=lead
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")


def whole_run_section(run: WholeRun) -> Html:
    """Days, GPU-hours, cost and energy of a run, with failures and checkpoints."""
    titles = ("whole run", "expected", "90 % interval")
    lead = f"{run.steps:,} steps on {run.gpus:,} GPUs. {run.failure_words()}"
    return section("Whole run", table(titles, run.lines()), lead=lead.strip())


def _top(p: Prediction) -> Html:
    step = tag("div", headline(p.step_us), tag("div", _interval(p), classes="interval"), classes="headline")
    name = tag("h1", p.workload or "step", tag("span", " on ", classes="on"), p.platform)
    assumption = tag("p", f"Assumed: {assumed(p)}.", classes="assumed")
    return joined([name, _fits(p), step, assumption, tag("p", _verdict(p), classes="verdict"), _figures(p)])


def _fits(p: Prediction) -> Html:
    """A job that does not run: before its time, with what would help."""
    if not p.memory or p.memory.fits:
        return Html("")
    lead = f"Does not fit into memory, by {size(p.memory.excess_bytes)}."
    return warning(f"{lead} What would help:" if p.what_would_help else lead, p.what_would_help)


def _interval(p: Prediction) -> Html:
    """The interval on a scale that begins at zero, with the measurement where there is one."""
    top = 1.04 * max(p.high_us, p.step_us, p.measured_us or 0.0) or 1.0
    low, mid, high = (SCALE_WIDTH * us / top for us in (p.low_us, p.step_us, p.high_us))
    seen, words = "", [f"90 % interval {time(p.low_us)} to {time(p.high_us)}"]
    if p.measured_us is not None:
        at = SCALE_WIDTH * p.measured_us / top
        off = change(p.step_us / p.measured_us - 1, 1)
        words.append(f"▲ measured {time(p.measured_us)} (prediction {off})")
        seen = f'<path d="M{at:.1f} 2l5 8h-10z" fill="var(--ink)"/>'
    drawing = (
        f'<svg viewBox="0 0 {SCALE_WIDTH} 30" role="img" aria-label="{text("; ".join(words))}">'
        f'<path d="M0 17H{SCALE_WIDTH}" stroke="var(--line)" stroke-width="2"/>'
        f'<rect x="{low:.1f}" y="12" width="{high - low:.1f}" height="10" rx="5" fill="var(--blue)" '
        'opacity=".35"/>'
        f'<circle cx="{mid:.1f}" cy="17" r="7" fill="var(--blue)"/>{seen}</svg>'
    )
    return joined([Html(drawing), *(tag("div", line, classes="soft") for line in words)])


def _verdict(p: Prediction) -> Html:
    """Why it takes that long, in a sentence or two."""
    sentences = [_largest(p)] if p.breakdown_us else []
    strongest = min(p.sensitivities, key=lambda s: _strength(p, s), default=None)
    if strongest and 1 - strongest.if_free_us / (p.step_us or 1.0) >= MATTERS:
        word = "host work" if strongest.category == HOST else look(strongest.category).word
        shorter = f" took no time, the step would take {_if_free(p, strongest.if_free_us)}."
        sentences.append(joined(["If ", tag("b", word), shorter]))
    elif strongest:
        sentences.append(
            text("No single part dominates: without any one of them the step is less than 5 % shorter.")
        )
    return joined(sentences, " ")


def _strength(p: Prediction, s: Sensitivity) -> tuple[float, float]:
    """By the step that is left without it; of two that leave as much, the larger one."""
    return round(s.if_free_us / (p.step_us or 1.0), 3), -p.breakdown_us.get(s.category, 0.0)


def _largest(p: Prediction) -> Html:
    name, us = max(p.breakdown_us.items(), key=lambda item: item[1])
    part = tag("b", share(us / (sum(p.breakdown_us.values()) or 1.0)))
    what = joined(["is ", tag("b", look(name).word)]) if name not in _LARGEST else _LARGEST[name]
    return joined([part, " of the step ", what, "."])


def _figures(p: Prediction) -> Html:
    # Of the ranks' own steps: where ranks enter one after the other these are longer than the job's.
    whole = sum(p.breakdown_us.values()) or 1.0
    waiting, idle = p.breakdown_us.get(WAITING, 0.0), p.breakdown_us.get(IDLE, 0.0)
    covered = f"and {share(waiting / whole)} waiting" if waiting else "not covered by compute"
    entries = [
        (term(name), value, peak_words(p)) if name == "MFU" else (name, value, _whole_job(name))
        for name, value in rate_lines(p)
    ]
    entries += [
        ("device active", share(p.gpu_active_us / whole), f"{time(p.gpu_active_us)} of the step"),
        (term("exposed communication"), share(p.exposed_communication_us / whole), covered),
        (term("host-bound", "idle, host-bound"), share(idle / whole), "nothing launched yet"),
    ]
    if len(p.ranks) > 1:
        entries.append((term("imbalance"), share(p.imbalance), "busiest rank over the mean"))
    entries.append(
        (term("sum of kernels", "kernels alone"), time(p.naive_us), "busiest stream, no launches, no waits")
    )
    return figures(entries)


def _whole_job(name: str) -> str:
    return "whole job" if name.endswith("s/s") else ""


def _breakdown(p: Prediction) -> Html:
    total = sum(p.breakdown_us.values()) or 1.0
    tail = (EXPOSED, WAITING, IDLE)
    order = sorted(p.breakdown_us.items(), key=lambda i: (tail.index(i[0]) if i[0] in tail else -1, -i[1]))
    parts = [
        Fragment(look(n).word, us, f"{time(us)}, {share(us / total)}", look(n).colour) for n, us in order
    ]
    largest = max(p.breakdown_us.values(), default=0.0) or 1.0
    titles = ("what the device does", "time", "share", "", term("step without it"))
    rows = []
    for row in p.rows():
        shown, us = look(row["part"]), row["time_us"]
        drawn = small_bar(us / largest, shown.colour)
        without = _if_free(p, row["step_if_free_us"])
        rows.append((named(shown.colour, shown.word), time(us), share(row["share"]), drawn, without))
    over = "mean over ranks" if len(p.ranks) > 1 else "one rank"
    return section(
        "Where the step goes", bar(parts, name="where the step goes"), table(titles, rows),
        lead=f"What the devices do during the step ({over}), and what the step would take without it.",
    )  # fmt: skip


def _if_free(p: Prediction, us: float | None) -> str:
    if us is None:
        return "–"
    by = us / (p.step_us or 1.0) - 1
    return f"{time(us)} ({change(by)})" if abs(by) >= 0.005 else "no change"


def _memory(p: Prediction) -> Html | None:
    if not p.memory:
        return None
    m = p.memory
    colours = ("gemm", "embedding", "copy", "optimizer", "attention", "vector", "conv", "other")
    held = [(memory_word(name), b) for name, b in m.parts_bytes.items() if b > 0]
    parts = [Fragment(n, b, size(b), colours[i % len(colours)]) for i, (n, b) in enumerate(held)]
    rows = [(named(x.colour, x.word), x.shown, share(x.value / (m.usable_bytes or 1.0))) for x in parts]
    titles = ("what is held", "size", "of what is usable")
    fits = tag("span", fits_words(m), classes="good" if m.fits else "bad")
    where = f"rank {m.rank}, the fullest" if len(p.ranks) > 1 else "the device"
    lead = joined([f"{size(m.total_bytes)} of {size(m.usable_bytes)} usable on {where}: ", fits, "."])
    return section(
        "Memory", bar(parts, total=m.usable_bytes, name="memory"), table(titles, rows), lead=lead
    )  # fmt: skip


def _trust(p: Prediction) -> Html:
    shares = p.coverage.share_by_source
    parts = [Fragment(source_look(n).word, s, share(s), source_look(n).colour) for n, s in _by_trust(shares)]
    meaning = legend((f"{x.word} {x.shown}", x.colour) for x in parts)
    body: list[Html] = [bar(parts, name="device time by source"), meaning]
    if p.coverage.without_model:
        rows = [
            (u.kernel, tag("code", u.op), source_look(u.source).word, time(u.time_us))
            for u in p.coverage.without_model
        ]
        titles = ("kernel", "operator", "instead", "time per step")
        summary = tag("summary", f"{len(rows)} operations without a fitted model, longest first")
        body.append(tag("details", summary, table(titles, rows, left=("operator", "instead"))))
    lead = sources_sentence(shares)
    if p.notes:
        body += [tag("h3", "Notes"), notes(grouped_notes(p.notes))]
    return section("How far to trust it", *body, lead=f"{lead[:1].upper()}{lead[1:]}.")


def _by_trust(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    order = [source.label for source in Source]
    return sorted(shares.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))


MOST_BARS = 16
"""Ranks that differ get a bar each up to here; beyond, a strip shows them all at once."""
STRIP_HEIGHT = 100.0
WAITING_MATTERS = 0.05
"""Waiting below this share of a step is not worth a sentence."""


def rank_section(prediction: Prediction, sets: Sequence[RankSet]) -> Html:
    """A bar for each rank that differs, or a strip of all and the few that stand out."""
    ranks = prediction.ranks
    longest = max((r.step_us for r in ranks), default=0.0) or 1.0
    meaning = legend((word, colour) for word, colour, _ in _split(ranks[0]))
    if len(sets) <= MOST_BARS:
        names = [f"all {len(ranks):,}"] if len(sets) == 1 < len(ranks) else [a.label for a in sets]
        named = [(name, ranks[a.first]) for name, a in zip(names, sets, strict=True)]
        return section("Ranks", _bars(named, longest), meaning, lead=_lead(sets, ranks))
    by_compute = sorted(ranks, key=lambda r: (r.compute_us, r.rank))
    telling = [
        (f"busiest, rank {by_compute[-1].rank:,}", by_compute[-1]),
        (f"median, rank {by_compute[len(ranks) // 2].rank:,}", by_compute[len(ranks) // 2]),
        (f"least busy, rank {by_compute[0].rank:,}", by_compute[0]),
    ]
    return section("Ranks", _strip(ranks, longest), meaning, _bars(telling, longest), lead=_lead(sets, ranks))


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
    if longest_wait - last.rank_wait_us >= WAITING_MATTERS * last.step_us:
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
    rows = []
    for name, r in named:
        parts = [
            Fragment(w, us, f"{time(us)}, {share(us / (r.step_us or 1.0))}", c) for w, c, us in _split(r)
        ]
        drawn = bar(parts, total=longest, name=name, thin=True)
        figures = (time(us) for us in (r.step_us, *(us for _, _, us in _split(r))))
        rows.append((name.replace("rank ", "rank\u00a0"), drawn, *figures))
    return table(("rank", "", "step", "compute", "exposed", "waiting", "idle"), rows)


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
