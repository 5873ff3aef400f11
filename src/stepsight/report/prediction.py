"""A prediction: does it fit, how long, why, who waits for whom, and how far to trust it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from stepsight.estimate import Source
from stepsight.prediction.answer import Prediction
from stepsight.prediction.breakdown import EXPOSED, HOST, IDLE, WAITING, Coverage, Sensitivity
from stepsight.prediction.display import (
    Look,
    assumed,
    change,
    energy_words,
    look,
    peak_words,
    rate_lines,
    share,
    size,
    source_look,
    time,
)
from stepsight.prediction.embedding import EmbeddingFigures, TableFigures
from stepsight.prediction.memory import MemoryLine
from stepsight.prediction.whole_run import WholeRun
from stepsight.report.pieces import (
    Bar,
    Fragment,
    Html,
    Listing,
    bar,
    figures,
    frame,
    headline,
    joined,
    legend,
    notes,
    searchable,
    section,
    show_listing,
    table,
    tag,
    term,
    text,
    warning,
    whole,
)
from stepsight.report.ranks import identical_ranks, identical_summaries, rank_section
from stepsight.report.timeline import picture
from stepsight.tables.table import CACHED, DEVICE
from stepsight.terminal import counted

MOST_RANKS_LISTED = 8
MOST_NOTES = 6
MOST_TABLES_LISTED = 8
MOST_TABLES, MOST_RANKS_OF_TABLES = 400, 128
"""Tables and ranks that a page lists; ``--json`` has them all."""
MATTERS = 0.05
"""A part whose removal shortens the step by less than this share does not hold it."""
SCALE_WIDTH = 520
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?:–\d+)?(?![\w-])")
"""A number, or a range of two, that stands by itself: not one in the name of a GPU or a kernel."""
DOUBT = 0.01
"""A verdict that is less likely than this to be wrong stands without its probability."""
_BASES = {
    "anchored": "anchored: what the trace measured stays, what changes is scaled by the models",
    "models": "models only: the trace gives operators, host times and what no model can know",
    "replay": "replay: every duration is the trace's",
}
"""What a prediction of a trace comes from."""
_LARGEST = {
    IDLE: "the devices are idle: the host has not launched their work yet",
    EXPOSED: "is communication that no compute covers",
    WAITING: "goes into waiting for slower ranks",
}


def show(prediction: Prediction, console: Console, run: WholeRun | None = None) -> None:
    """Print everything a reader needs to use the number, and to doubt it."""
    _show_fits(prediction, console)
    console.print(_headline(prediction))
    show_listing(_breakdown(prediction), console)
    show_listing(_ranks(prediction), console)
    if prediction.embedding:
        show_listing(tables_listing(prediction.embedding), console)
    console.print(_why(prediction), soft_wrap=True)
    _show_memory(prediction, console)
    _show_trust(prediction, console)
    if run:
        show_listing(whole_run_listing(run), console)


def page(prediction: Prediction, run: WholeRun | None = None) -> str:
    """The whole page as HTML that needs no other file, with the whole run where one was asked for."""
    sets = identical_ranks(prediction.timeline)
    place, script = picture(prediction, sets)
    lead = "What the host and every stream do, and when. The host may run ahead of the step."
    sections = [
        whole_run_listing(run).section() if run else None,
        _where(prediction),
        rank_section(prediction.ranks),
        *(embedding_sections(prediction.embedding) if prediction.embedding else ()),
        section("Timeline", place, lead=lead),
        _memory(prediction),
        _trust(prediction),
    ]
    title = f"{prediction.workload or 'step'} on {prediction.platform}: {time(prediction.step_time_us)}"
    return frame(title, _top(prediction), sections, scripts=[script])


def whole_run_listing(found: WholeRun) -> Listing:
    """Days, GPU-hours, cost, energy and goodput of a run."""
    title = f"whole run: {counted(found.steps, 'step')} on {counted(found.gpus, 'GPU')}"
    words = found.failure_words()
    columns = ("", "expected", "90 % interval")
    return Listing(title, columns, found.lines(), below=[words] if words else [])


def tables_listing(found: EmbeddingFigures) -> Listing:
    """The tables that take longest, hottest first."""
    titles = ("table", "time", "lookups", "reuse", "traffic", "sent", "ranks", "sharding")
    rows = [
        (f.name, time(f.time_us), f"{f.lookups:,.0f}", f"{f.reuse:.1f}", size(f.memory_bytes),
         size(f.exchanged_bytes), str(f.ranks[0]) if len(f.ranks) == 1 else f"{len(f.ranks)} ranks", _tier(f))
        for f in found.tables[:MOST_TABLES_LISTED]
    ]  # fmt: skip
    more = len(found.tables) - MOST_TABLES_LISTED
    if more > 0:
        rows.append(("…", "", "", "", "", "", "", f"and {more} more (see --json)"))
    return Listing("tables, by lookup and update", titles, rows, ("sharding",))


def _tier(f: TableFigures) -> str:
    """How a table is cut and, unless that is the GPU's memory, where it lies, with its cache."""
    cached = f", cache of {share(f.cache_share)} holds {share(f.hit_rate)}" if f.placement in CACHED else ""
    kind = f.kind.replace("_", "-")
    return kind if f.placement == DEVICE else f"{kind}, {f.placement}{cached}"


def embedding_sections(found: EmbeddingFigures) -> list[Html]:
    """Every table, hottest first, and what each rank looks up and sends; a click on a heading sorts."""
    titles = (
        "table", "time", "forward", "backward", "lookups", "distinct rows", "reuse", "from memory",
        "through L2", "sent", "ranks", "sharding",
    )  # fmt: skip
    rows = [
        (f.name, time(f.time_us), time(f.forward_us), time(f.backward_us), f"{f.lookups:,.0f}",
         f"{f.unique_rows:,.0f}", f"{f.reuse:.1f}", size(f.memory_bytes), size(f.cache_bytes),
         size(f.exchanged_bytes), _listed(f.ranks), _tier(f))
        for f in found.tables[:MOST_TABLES]
    ]  # fmt: skip
    listing = searchable("tables", table(titles, rows, left=("sharding",)), placeholder="find a table")
    cut = f" The first {MOST_TABLES} of {len(found.tables):,}." if len(found.tables) > MOST_TABLES else ""
    lead = f"Each table by itself, hottest first: one batch, forward and backward.{cut}"
    made = [section("Tables", listing, lead=lead)]
    if len(found.ranks) > 1:
        loads = [
            (str(r.rank), str(r.tables), time(r.forward_us + r.backward_us), f"{r.lookups:,.0f}",
             size(r.memory_bytes), size(r.sent_bytes), r.hottest)
            for r in found.ranks[:MOST_RANKS_OF_TABLES]
        ]  # fmt: skip
        columns = ("rank", "tables", "time", "lookups", "from memory", "sent", "hottest table")
        drawn = searchable("ranks", table(columns, loads, left=("hottest table",)))
        lead = f"The busiest rank looks up {share(found.imbalance)} longer than the mean."
        made.append(section("Lookups of each rank", drawn, lead=lead))
    return made


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")


def _show_fits(p: Prediction, console: Console) -> None:
    """What does not run comes before how long it would take."""
    if not p.memory or p.memory.fits:
        return
    m = p.memory
    where = f"rank {m.rank} needs" if len(p.ranks) > 1 else "it needs"
    verdict = f"DOES NOT FIT: {where} {size(m.total_bytes)}, {size(m.usable_bytes)} of the GPU is usable"
    console.print(Text(verdict, style="bold red"))
    for helps in p.what_would_help:  # a line to copy is not broken
        console.print(Text(f"  to make it fit: {helps}"), soft_wrap=True)
    console.print("Predicted step if memory were sufficient:")


def _headline(p: Prediction) -> Text:
    text = Text()
    text.append(f"{p.workload or 'step'} on {p.platform}\n", style="bold")
    text.append("step time  ")
    text.append(time(p.step_time_us), style="bold green")
    text.append(f"   (90 % interval {time(p.low_us)} to {time(p.high_us)})")
    if p.basis:
        text.append(f"\nbasis      {_BASES[p.basis]}")
    if p.measured_us is not None:
        error = p.step_time_us / p.measured_us - 1
        text.append(f"\nmeasured   {time(p.measured_us)}   (prediction {change(error, 1)})")
    elif p.origin is not None:
        text.append(f"\ntraced     {time(p.origin.step_us)} on {p.origin.platform}, as recorded")
    if p.origin is not None and p.origin.timed_by is not None:
        text.append(f"\ntimed by   {p.origin.timed_by.words()}")
    text.append(f"\nassumed    {assumed(p)}")
    rates = rate_lines(p)
    if rates:
        text.append("\nrate       " + "   ".join(f"{value} {name}" for name, value in rates if name != "MFU"))
        utilisation = dict(rates).get("MFU")
        text.append(f"\nMFU        {utilisation} {peak_words(p)}" if utilisation else "")
    if p.energy is not None:
        kind = p.setup.sample_kind if p.setup else "samples"
        text.append(f"\nenergy     {energy_words(p.energy, kind)}")
    return text


def _top(p: Prediction) -> Html:
    step = tag(
        "div", headline(p.step_time_us), tag("div", _interval(p), classes="interval"), classes="headline"
    )
    name = tag("h1", p.workload or "step", tag("span", " on ", classes="on"), whole(p.platform))
    assumption = tag("p", whole(f"Assumed: {assumed(p)}."), classes="assumed")
    return joined([name, _fits(p), step, assumption, tag("p", _verdict(p), classes="verdict"), _figures(p)])


def _fits(p: Prediction) -> Html:
    """A job that does not run: before its time, with what would help."""
    if not p.memory or p.memory.fits:
        return Html("")
    lead = f"Does not fit into memory, by {size(p.memory.excess_bytes)}."
    return warning(f"{lead} What would help:" if p.what_would_help else lead, p.what_would_help)


def _interval(p: Prediction) -> Html:
    """The interval on a scale that begins at zero, with the measurement where there is one."""
    top = 1.04 * max(p.high_us, p.step_time_us, p.measured_us or 0.0) or 1.0
    low, mid, high = (SCALE_WIDTH * us / top for us in (p.low_us, p.step_time_us, p.high_us))
    seen, words = "", [f"90 % interval {time(p.low_us)} to {time(p.high_us)}"]
    if p.measured_us is not None:
        at = SCALE_WIDTH * p.measured_us / top
        off = change(p.step_time_us / p.measured_us - 1, 1)
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
    strongest = min(p.sensitivity, key=lambda s: _strength(p, s), default=None)
    shorter = strongest.if_free_us / (p.step_time_us or 1.0) - 1 if strongest else 0.0
    if strongest and -shorter >= MATTERS:
        word = "host work" if strongest.category == HOST else look(strongest.category).word
        would = f" took no time, the step would take {time(strongest.if_free_us)} ({change(shorter)})."
        sentences.append(joined(["If ", tag("b", word), would]))
    elif strongest:
        sentences.append(
            text("No single part dominates: without any one of them the step is less than 5 % shorter.")
        )
    return joined(sentences, " ")


def _strength(p: Prediction, s: Sensitivity) -> tuple[float, float]:
    """By the step that is left without it; of two that leave as much, the larger one."""
    return round(s.if_free_us / (p.step_time_us or 1.0), 3), -p.breakdown_us.get(s.category, 0.0)


def _largest(p: Prediction) -> Html:
    name, us = max(p.breakdown_us.items(), key=lambda item: item[1])
    part = tag("b", share(us / (sum(p.breakdown_us.values()) or 1.0)))
    what = joined(["is ", tag("b", look(name).word)]) if name not in _LARGEST else _LARGEST[name]
    return joined([part, " of the step ", what, "."])


def _figures(p: Prediction) -> Html:
    whole = sum(p.breakdown_us.values()) or 1.0
    waiting, idle = p.breakdown_us.get(WAITING, 0.0), p.breakdown_us.get(IDLE, 0.0)
    covered = f"and {share(waiting / whole)} waiting" if waiting else "not covered by compute"
    entries = [
        (term(name), value, peak_words(p)) if name == "MFU"
        else (name, value, "whole job" if name.endswith("s/s") else "")
        for name, value in rate_lines(p)
    ]  # fmt: skip
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


def _breakdown(p: Prediction) -> Listing:
    rows = []
    for row in p.rows():
        shown, us = look(row["part"]), row["time_us"]
        drawn = Bar((Fragment(shown.word, row["share"], share(row["share"]), shown.colour),), 1.0)
        without = "" if row["step_if_free_us"] is None else time(row["step_if_free_us"])
        rows.append((shown, time(us), share(row["share"]), drawn, without))
    titles = ("what the device does", "time", "share", "", "step without it")
    return Listing("where the step goes (mean over ranks)", titles, rows)


def _where(p: Prediction) -> Html:
    """One bar of all parts, and a line for each."""
    total = sum(p.breakdown_us.values()) or 1.0
    tail = (EXPOSED, WAITING, IDLE)
    order = sorted(p.breakdown_us.items(), key=lambda i: (tail.index(i[0]) if i[0] in tail else -1, -i[1]))
    parts = [
        Fragment(look(n).word, us, f"{time(us)}, {share(us / total)}", look(n).colour) for n, us in order
    ]
    over = "mean over ranks" if len(p.ranks) > 1 else "one rank"
    lead = f"What the devices do during the step ({over}), and what the step would take without it."
    drawn = bar(parts, name="where the step goes")
    return section("Where the step goes", drawn, _breakdown(p).html(), lead=lead)


def _ranks(p: Prediction) -> Listing:
    titles = ("rank", "step", "active", "compute", "comm.", "exposed", "waiting", "idle")
    sets = identical_summaries(p.ranks)
    rows = []
    for one in sets[:MOST_RANKS_LISTED]:
        r = p.ranks[one.first]
        name = one.label.removeprefix("ranks ").removeprefix("rank ")
        if len(sets) == 1 and len(p.ranks) > 1:
            name = f"all {len(p.ranks):,}"
        times = (
            r.step_us, r.gpu_active_us, r.compute_us, r.communication_us, r.exposed_communication_us,
            r.rank_wait_us, r.idle_us,
        )  # fmt: skip
        rows.append((name, *map(time, times)))
    left = sum(len(one.ranks) for one in sets[MOST_RANKS_LISTED:])
    if left:
        rows.append((f"… {left:,} more (--json has them all)",))
    return Listing("ranks", titles, rows)


def _why(p: Prediction) -> str:
    step = p.step_time_us or 1.0
    words = [f"exposed communication {share(p.exposed_communication_us / step)} of the step"]
    if p.language is not None and p.language.bubble >= 0.001:
        words[0] += f" (pipeline bubble {share(p.language.bubble)})"
    if len(p.ranks) > 1:
        words.append(f"imbalance {share(p.imbalance)}")
    words.append(f"sum of the busiest stream's kernels {time(p.naive_us)}")
    return "; ".join(words)


def _held(m: MemoryLine) -> list[tuple[str, float]]:
    return [(memory_word(name), held) for name, held in m.parts_bytes.items() if held > 0]


def _show_memory(p: Prediction, console: Console) -> None:
    if not p.memory:
        return
    m = p.memory
    parts = ", ".join(f"{name} {size(held)}" for name, held in _held(m))
    where = f"memory of rank {m.rank}, the fullest" if len(p.ranks) > 1 else "memory"
    console.print(
        f"{where}: {size(m.total_bytes)} of {size(m.usable_bytes)} usable, {fits_words(m)} ({parts})"
    )


def _memory(p: Prediction) -> Html | None:
    if not p.memory:
        return None
    m = p.memory
    colours = ("gemm", "embedding", "copy", "optimizer", "attention", "vector", "conv", "other")
    parts = [Fragment(n, b, size(b), colours[i % len(colours)]) for i, (n, b) in enumerate(_held(m))]
    rows = [(Look(x.word, x.colour), x.shown, share(x.value / (m.usable_bytes or 1.0))) for x in parts]
    held = Listing("", ("what is held", "size", "of what is usable"), rows)
    fits = tag("span", fits_words(m), classes="good" if m.fits else "bad")
    where = f"rank {m.rank}, the fullest" if len(p.ranks) > 1 else "the device"
    lead = joined([f"{size(m.total_bytes)} of {size(m.usable_bytes)} usable on {where}: ", fits, "."])
    return section("Memory", bar(parts, total=m.usable_bytes, name="memory"), held.html(), lead=lead)


def _show_trust(p: Prediction, console: Console) -> None:
    console.print(sources_sentence(p.coverage))
    if p.coverage.without_model:
        names = ", ".join(f"{u.kernel} in {u.op} ({time(u.time_us)})" for u in p.coverage.without_model[:4])
        more = len(p.coverage.without_model) - 4
        console.print(f"without a fitted model: {names}" + (f" and {more} more" if more > 0 else ""))
    listed = grouped_notes(p.notes)
    for note in listed[:MOST_NOTES]:
        console.print(Text(f"note: {note}", style="dim"))
    if len(listed) > MOST_NOTES:
        more = len(listed) - MOST_NOTES
        console.print(Text(f"… {counted(more, 'more note')} in --json", style="dim"))


def _trust(p: Prediction) -> Html:
    parts = [
        Fragment(f"{name}: {shown.word}", part, share(part), shown.colour)
        for name, known in _by_source(p.coverage)
        for shown, part in known
    ]
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
    lead = sources_sentence(p.coverage)
    if p.notes:
        body += [tag("h3", "Notes"), notes(grouped_notes(p.notes))]
    return section("How far to trust it", *body, lead=f"{lead[:1].upper()}{lead[1:]}.")


def fits_words(m: MemoryLine) -> str:
    """The verdict on memory, with its probability where there is doubt."""
    sure = min(m.fit_probability, 1 - m.fit_probability) < DOUBT
    if m.fits:
        return "fits" if sure else f"fits with a probability of {100 * m.fit_probability:.0f} %"
    by = f"does not fit, by {size(m.excess_bytes)}"
    return by if sure else f"{by} ({100 * m.fit_probability:.0f} % chance to fit)"


_MEMORY = {
    "buckets": "gradient buckets",
    "other_persistent": "buckets and other tensors kept between steps",
    "context": "CUDA context and libraries",
    "temporary": "logits, gathered parameters and other buffers",
    "cached_by_allocator": "fragmentation of the allocator",
}


def memory_word(part: str) -> str:
    """What a part of memory is called."""
    return _MEMORY.get(part) or part.replace("_", " ")


def grouped_notes(notes: Iterable[str]) -> list[str]:
    """Notes that differ only in numbers as one, with what the numbers range over."""
    identical: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        identical.setdefault(_NUMBER.sub("#", note), []).append(note)
    return [some[0] if len(some) == 1 else _as_one(some) for some in identical.values()]


def _as_one(notes: Sequence[str]) -> str:
    texts = _NUMBER.split(notes[0])
    columns = zip(*(_NUMBER.findall(note) for note in notes), strict=True)
    ranges = []
    for column in columns:
        ends = sorted(
            {n for text in column for n in text.split("–")}, key=lambda n: float(n.replace(",", ""))
        )
        ranges.append(ends[0] if len(ends) == 1 else f"{ends[0]}–{ends[-1]}")
    joined = "".join(f"{text}{number}" for text, number in zip(texts, [*ranges, ""], strict=True))
    return f"{joined} ({len(notes)} similar notes)"


def _by_source(coverage: Coverage) -> list[tuple[str, list[tuple[Look, float]]]]:
    """Of kernels and of collectives, the shares of device time that are not zero, best source first."""
    found = []
    both = {"kernels": coverage.kernels_by_source, "collectives": coverage.communication_by_source}
    for name, shares in both.items():
        collective = name == "collectives"
        known = [(source_look(s.label, collective=collective), shares.get(s.label, 0.0)) for s in Source]
        if known := [(shown, part) for shown, part in known if part > 0]:
            found.append((name, known))
    return found


def sources_sentence(coverage: Coverage) -> str:
    """What the times of a prediction come from: kernels, then collectives, best source first."""
    parts = [
        f"{name} " + ", ".join(f"{share(part)} from {shown.word}" for shown, part in known)
        for name, known in _by_source(coverage)
    ]
    return f"device time: {'; '.join(parts)}" if parts else "no kernel ran, so nothing was estimated"
