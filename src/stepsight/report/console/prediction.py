"""A prediction, or two of them, in the terminal: does it fit, how long, why, and how far to trust it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight.prediction.answer import Prediction
from stepsight.prediction.breakdown import EXPOSED, IDLE, WAITING
from stepsight.prediction.compare import Comparison
from stepsight.prediction.display import (
    assumed,
    energy_words,
    look,
    peak_words,
    rate_lines,
    share,
    size,
    time,
)
from stepsight.prediction.embedding import EmbeddingFigures
from stepsight.report.ranks import identical_summaries
from stepsight.report.words import (
    comparison_sentence,
    differences,
    fits_words,
    grouped_notes,
    memory_word,
    sources_sentence,
)
from stepsight.tables.table import CACHED
from stepsight.terminal import listing

BAR_WIDTH = 20
MOST_RANKS_LISTED = 8
MOST_NOTES = 6
MOST_TABLES_LISTED = 8
COLOURS = {
    "gemm": "blue", "attention": "magenta", "embedding": "green", "vector": "cyan", "conv": "blue",
    "copy": "yellow", "optimizer": "bright_blue", EXPOSED: "red", WAITING: "bright_red", IDLE: "bright_black",
}  # fmt: skip


_BASES = {
    "anchored": "anchored: what the trace measured stays, what changes is scaled by the models",
    "models": "models only: the trace gives operators, host times and what no model can know",
    "replay": "replay: every duration is the trace's",
}
"""What a prediction of a trace comes from."""


def show(prediction: Prediction, console: Console) -> None:
    """Print everything a reader needs to use the number, and to doubt it."""
    _fits(prediction, console)
    console.print(_headline(prediction))
    console.print(_breakdown(prediction))
    console.print(_ranks(prediction))
    if prediction.embedding:
        console.print(embedding_tables(prediction.embedding))
    _why(prediction, console)
    _memory(prediction, console)
    _trust(prediction, console)


def embedding_tables(figures: EmbeddingFigures) -> Table:
    """The tables that take longest, hottest first."""
    titles = ("table", "time", "lookups", "reuse", "memory", "sent", "ranks", "where")
    table = listing(titles, (), title="tables, by lookup and update", left=("where",))
    for f in figures.tables[:MOST_TABLES_LISTED]:
        ranks = str(f.ranks[0]) if len(f.ranks) == 1 else f"{len(f.ranks)} ranks"
        cached = f", cache of {share(f.cache_share)} holds {share(f.hit_rate)}"
        tier = f.placement + (cached if f.placement in CACHED else "")
        table.add_row(
            f.name, time(f.time_us), f"{f.lookups:,.0f}", f"{f.reuse:.1f}", size(f.memory_bytes),
            size(f.exchanged_bytes), ranks, f"{f.kind.replace('_', '-')}, {tier}",
        )  # fmt: skip
    more = len(figures.tables) - MOST_TABLES_LISTED
    if more > 0:
        table.add_row("…", "", "", "", "", "", "", f"and {more} more (see --json)")
    return table


def _fits(p: Prediction, console: Console) -> None:
    """What does not run comes before how long it would take."""
    if not p.memory or p.memory.fits:
        return
    m = p.memory
    where = f"rank {m.rank} needs" if len(p.ranks) > 1 else "it needs"
    console.print(
        Text(
            f"DOES NOT FIT: {where} {size(m.total_bytes)}, {size(m.usable_bytes)} of the GPU is usable",
            style="bold red",
        )
    )
    for helps in p.what_would_help:
        console.print(f"  to make it fit: {helps}")
    console.print("Predicted step if memory were sufficient:")


def _headline(p: Prediction) -> Text:
    text = Text()
    text.append(f"{p.workload or 'step'} on {p.platform}\n", style="bold")
    text.append("step time  ")
    text.append(time(p.step_us), style="bold green")
    text.append(f"   (90 % interval {time(p.low_us)} to {time(p.high_us)})")
    if p.basis:
        text.append(f"\nbasis      {_BASES[p.basis]}")
    if p.measured_us is not None:
        error = p.step_us / p.measured_us - 1
        text.append(f"\nmeasured   {time(p.measured_us)}   (prediction {100 * error:+.1f} %)")
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
        text.append(f"\nenergy     {energy_words(p.energy)}")
    return text


def _breakdown(p: Prediction) -> Table:
    titles = ("what the device does", "time", "share", "", "step without it")
    table = listing(titles, (), title="where the step goes (mean over ranks)", left=("",))
    for row in p.rows():
        bar = Text("█" * round(BAR_WIDTH * row["share"]) or "▏", style=COLOURS.get(row["part"], "white"))
        without = "" if row["step_if_free_us"] is None else time(row["step_if_free_us"])
        table.add_row(look(row["part"]).word, time(row["time_us"]), share(row["share"]), bar, without)
    return table


def _ranks(p: Prediction) -> Table:
    titles = ("rank", "step", "active", "compute", "comm.", "exposed", "waiting", "idle")
    table = listing(titles, (), title="ranks")
    sets = identical_summaries(p.ranks)
    for one in sets[:MOST_RANKS_LISTED]:
        r = p.ranks[one.first]
        name = one.label.removeprefix("ranks ").removeprefix("rank ")
        if len(sets) == 1 and len(p.ranks) > 1:
            name = f"all {len(p.ranks):,}"
        table.add_row(
            name, time(r.step_us), time(r.gpu_active_us), time(r.compute_us), time(r.communication_us),
            time(r.exposed_communication_us), time(r.rank_wait_us), time(r.idle_us),
        )  # fmt: skip
    left = sum(len(one.ranks) for one in sets[MOST_RANKS_LISTED:])
    if left:
        table.add_row(f"… {left:,} more (--json has them all)")
    return table


def _why(p: Prediction, console: Console) -> None:
    step = p.step_us or 1.0
    words = [f"exposed communication {share(p.exposed_communication_us / step)} of the step"]
    if p.language is not None and p.language.bubble >= 0.001:
        words[0] += f" (pipeline bubble {share(p.language.bubble)})"
    if len(p.ranks) > 1:
        words.append(f"imbalance {share(p.imbalance)}")
    words.append(f"sum of the busiest stream's kernels {time(p.naive_us)}")
    console.print("; ".join(words), soft_wrap=True)


def _memory(p: Prediction, console: Console) -> None:
    if not p.memory:
        return
    m = p.memory
    parts = ", ".join(f"{memory_word(name)} {size(b)}" for name, b in m.parts_bytes.items() if b)
    where = f"memory of rank {m.rank}, the fullest" if len(p.ranks) > 1 else "memory"
    console.print(
        f"{where}: {size(m.total_bytes)} of {size(m.usable_bytes)} usable, {fits_words(m)} ({parts})"
    )


def _trust(p: Prediction, console: Console) -> None:
    guessed = p.coverage.guessed_sizes
    sizes = f"; sizes that are not recorded were guessed for {share(guessed)}" if guessed > 0 else ""
    console.print(sources_sentence(p.coverage.share_by_source) + sizes)
    if p.coverage.without_model:
        names = ", ".join(f"{u.kernel} in {u.op} ({time(u.time_us)})" for u in p.coverage.without_model[:4])
        more = len(p.coverage.without_model) - 4
        console.print(f"without a fitted model: {names}" + (f" and {more} more" if more > 0 else ""))
    notes = grouped_notes(p.notes)
    for note in notes[:MOST_NOTES]:
        console.print(Text(f"note: {note}", style="dim"))
    if len(notes) > MOST_NOTES:
        more = len(notes) - MOST_NOTES
        console.print(Text(f"… {more} more note{'s' * (more > 1)} in --json", style="dim"))


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print the comparison."""
    before, after = comparison.before, comparison.after
    for name, p in (("A", before), ("B", after)):
        console.print(_side(name, p))
    for name, one, other in differences(comparison):
        console.print(Text(f"differs: {name}: {one} → {other}"))
    console.print(Text(comparison_sentence(comparison), style="bold"))
    per = "mean over ranks" if comparison.same_work else "mean over ranks; steps of different work"
    a, b = dict(rate_lines(before)), dict(rate_lines(after))
    rows = [
        (look(c.category).word, time(c.before_us), time(c.after_us), time(c.difference_us))
        for c in comparison.changes
    ]
    rows += [(name, a.get(name, ""), b.get(name, ""), "") for name in {**a, **b}]
    console.print(listing(("", "A", "B", "B − A"), rows, title=f"where the difference went ({per})"))


def _side(name: str, p: Prediction) -> Text:
    fits = "" if p.fits is not False else "  DOES NOT FIT"
    line = Text(f"{name}  {p.workload or 'step'} on {p.platform}: {time(p.step_us)} per step")
    line.append(f" (90 % interval {time(p.low_us)} to {time(p.high_us)})")
    line.append(fits, style="bold red")
    return line.append(f"\n   assumed {assumed(p)}")
