"""Sentences that more than one report uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from stepsight.estimate import Source
from stepsight.prediction.categories import source_look
from stepsight.prediction.compare import Comparison
from stepsight.prediction.memory import MemoryLine
from stepsight.prediction.units import rate, share, size, time

SAME = 0.0005
"""Step times that differ by less than this share are the same."""
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w-])")
"""A number that stands by itself: not one in the name of a GPU or a kernel."""
DOUBT = 0.01
"""A verdict that is less likely than this to be wrong stands without its probability."""


def comparison_sentence(c: Comparison) -> str:
    """Which is faster, by what factor and by how much time; where steps do different work, by its rate."""
    if not c.same_work:
        return f"{_work_words(c)}: {_rate_words(c)}."
    if abs(c.after.step_us - c.before.step_us) <= SAME * c.before.step_us:
        return "A and B take the same time."
    by = time(abs(c.difference_us))
    if c.speedup >= 1:
        return f"B is {c.speedup:.2f}× faster than A: {by} less a step."
    return f"B is {1 / c.speedup:.2f}× slower than A: {by} more a step."


def _work_words(c: Comparison) -> str:
    """What a step does in each, where that differs."""
    a, b = c.before.setup, c.after.setup
    for unit in ("samples", "tokens"):
        one, other = getattr(a, unit, None), getattr(b, unit, None)
        if one and other and one != other:
            return f"A step of B does {rate(other)} {unit}, one of A {rate(one)}"
    return f"A step of B does {c.work_ratio:.4g}× the samples of A's"


def _rate_words(c: Comparison) -> str:
    """Which does more in a second."""
    ratio = c.throughput_ratio or 1.0
    a, b = c.before.throughput, c.after.throughput
    rates = ""
    for unit, one, other in (
        ("tokens/s", a.tokens_per_s, b.tokens_per_s), ("samples/s", a.samples_per_s, b.samples_per_s),
    ):  # fmt: skip
        if one and other and not rates:
            rates = f" ({rate(other)} against {rate(one)} {unit})"
    if abs(ratio - 1) <= SAME:
        return f"A and B train as fast{rates}"
    return f"B trains {max(ratio, 1 / ratio):.2f}× {'faster' if ratio > 1 else 'slower'} than A{rates}"


def fits_words(m: MemoryLine) -> str:
    """The verdict on memory, with its probability where there is doubt."""
    sure = min(m.fit_probability, 1 - m.fit_probability) < DOUBT
    if m.fits:
        return "fits" if sure else f"fits with a probability of {100 * m.fit_probability:.0f} %"
    by = f"does not fit, by {size(m.excess_bytes)}"
    return by if sure else f"{by} ({100 * m.fit_probability:.0f} % chance to fit)"


def grouped_notes(notes: Iterable[str]) -> list[str]:
    """Notes that differ only in numbers as one, with what the numbers range over."""
    alike: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        alike.setdefault(_NUMBER.sub("#", note), []).append(note)
    return [some[0] if len(some) == 1 else _as_one(some) for some in alike.values()]


def _as_one(notes: Sequence[str]) -> str:
    texts = _NUMBER.split(notes[0])
    columns = zip(*(_NUMBER.findall(note) for note in notes), strict=True)
    ranges = []
    for seen in (sorted(set(column), key=lambda n: float(n.replace(",", ""))) for column in columns):
        ranges.append(seen[0] if len(seen) == 1 else f"{seen[0]}–{seen[-1]}")
    joined = "".join(f"{text}{number}" for text, number in zip(texts, [*ranges, ""], strict=True))
    return f"{joined} ({len(notes)} notes alike)"


def sources_sentence(shares: Mapping[str, float]) -> str:
    """What the times of a prediction come from, best source first."""
    order = [source.label for source in Source]
    known = sorted(shares.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    said = [f"{share(part)} from {source_look(name).word}" for name, part in known if part > 0]
    return f"device time: {', '.join(said)}" if said else "no kernel ran, so nothing was estimated"
