"""A search or a sweep as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepsight.tune.answer import Answer, Neighbour, setting_text, settings_text, why
from stepsight.tune.dimensions import short_name, short_names
from stepsight.tune.flags import Flags
from stepsight.tune.search import SURE, score, within_noise
from stepsight.tune.trial import Row


def milliseconds(us: float) -> str:
    ms = us / 1e3
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}"


def show_answer(answer: Answer, console: Console, written: Sequence[Flags] = ()) -> None:
    """The best, how sure, why, what lies one step away, and the flags."""
    counts = ", ".join(f"{n:,} {status}" for status, n in answer.counts.items())
    legal = counted(len(answer.rows), "legal configuration")
    console.print(f"{legal} on {answer.platform} in {answer.seconds:.1f} s: {counts}")
    table = Table(box=None, pad_edge=False)
    for name in ("", "configuration", "step ms", "90 % interval", "memory", "MFU", "why"):
        table.add_column(name, justify="left" if name in ("configuration", "why", "") else "right")
    for place, row in enumerate(answer.top, 1):
        table.add_row(
            f"{place}{noise_mark(row, answer)}", settings_text(row.settings), milliseconds(row.step_time_us),
            f"{milliseconds(row.low_us)}–{milliseconds(row.high_us)}",
            f"{row.memory_gb:.0f} of {row.capacity_gb:.0f} GB", f"{100 * row.mfu:.1f} %" if row.mfu else "",
            why(row, answer.best),
        )  # fmt: skip
    console.print(table)
    for line in remarks(answer):
        console.print(Text(line))
    for one in written:
        said = [f"it has no {one.lacks}"] * bool(one.lacks) + [one.note] * bool(one.note)
        head = one.framework + (f" ({'; '.join(said)})" if said else "")
        console.print(Text(f"\n{head}:\n{one.text}" if one.text else f"\n{head}"), soft_wrap=True)


def noise_mark(row: Row, answer: Answer) -> str:
    """≈ where the prediction cannot tell a row from the first."""
    told_apart = row is answer.best or not within_noise(row, answer.best, answer.objective)
    return "" if told_apart else "≈"


def remarks(answer: Answer) -> list[str]:
    """What is to be said beside the table."""
    best, lines = answer.best, []
    if answer.epoch_samples and best.samples_per_s:
        took = long_time(answer.epoch_samples / best.samples_per_s)
        money = best.cost_of(answer.epoch_samples)
        cost = f", cost {money:,.4g}" if money is not None else ""
        lines.append(f"an epoch of {answer.epoch_samples:,} samples: {took}{cost}")
    if best.cost_per_step is not None:
        per_token = best.cost_per_million_tokens
        tokens = f", {per_token:.4g} per million tokens" if per_token is not None else ""
        lines.append(f"cost of the first: {best.cost_per_step:.4g} per step{tokens}")
    if answer.ties:
        ties = counted(answer.ties, "configuration")
        lines.append(f"≈ within the noise of the first: {ties}; measure those too.")
    if answer.maybe is not None:
        faster = 1 - score(answer.maybe, answer.objective) / score(best, answer.objective)
        word = {"time": "faster", "cost": "cheaper", "memory": "smaller"}[answer.objective]
        lines.append(
            f"{100 * faster:.1f} % {word}, but it fits with a probability of only {answer.maybe.fit:.0%} "
            f"({answer.maybe.memory_gb:.0f} of {answer.maybe.capacity_gb:.0f} GB): "
            f"{settings_text(answer.maybe.settings)}"
        )
    if answer.neighbours:
        lines.append(f"one step away from the first: {'; '.join(map(_near, answer.neighbours))}")
    lines += [
        f"without a time: {reason} ({counted(n, 'configuration')})" for reason, n in answer.failures.items()
    ]
    return lines


def _near(n: Neighbour) -> str:
    """A neighbour in words: how much slower, and whether it fits."""
    said = f"{short_name(n.dimension)} {setting_text(n.value)}: "
    if n.slower is None:
        return f"{said}{n.row.reason or n.row.status}"
    fits = "" if n.row.fit >= SURE else " (may not fit)" if n.row.fit >= 0.5 else " (does not fit)"
    return f"{said}{100 * n.slower:+.1f} %{fits}"


def counted(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def long_time(seconds: float) -> str:
    """In the unit that people would use."""
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.3g} seconds"


def show_rows(rows: Sequence[Row], console: Console) -> None:
    """A sweep's table."""
    varied = list(dict.fromkeys(path for row in rows for path in row.settings))
    platforms = len({row.platform for row in rows}) > 1
    has_tokens, has_cost = any(r.tokens_per_s for r in rows), any(r.cost_per_step for r in rows)
    table = Table(box=None, pad_edge=False)
    names = [*(["platform"] if platforms else []), *short_names(varied).values(), "step ms", "90 % interval"]
    has_rate = has_tokens or any(r.samples_per_s for r in rows)
    names += ["tokens/s" if has_tokens else "samples/s"] if has_rate else []
    names += ["MFU", "memory GB", *(["cost/step"] if has_cost else [])]
    names += ["cost/M tokens"] if has_cost and has_tokens else []
    for name in names:
        table.add_column(name, justify="left" if name == "platform" else "right")
    refused: dict[str, int] = {}
    for row in rows:
        head = [*([row.platform] if platforms else []), *(str(row.settings.get(p, "")) for p in varied)]
        if not row.priced:
            number = refused.setdefault(row.reason, len(refused) + 1)
            table.add_row(*head, Text(f"{row.status} [{number}]"))
            continue
        rate = row.tokens_per_s if has_tokens else row.samples_per_s
        cells = [
            milliseconds(row.step_time_us), f"{milliseconds(row.low_us)}–{milliseconds(row.high_us)}",
            *([f"{rate:,.0f}"] if has_rate else []), f"{100 * row.mfu:.1f} %" if row.mfu else "",
            f"{row.memory_gb:.1f}" + ("" if row.fits else f" of {row.capacity_gb:.0f}: too much"),
        ]  # fmt: skip
        costs = (row.cost_per_step, *([row.cost_per_million_tokens] if has_tokens else []))
        shown = [f"{cost:.4g}" if cost is not None else "" for cost in costs] if has_cost else []
        table.add_row(*head, *cells, *shown)
    console.print(table)
    for reason, number in refused.items():
        console.print(Text(f"[{number}] {reason}"))
