"""Sentences that more than one report uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from stepsight.estimate import Source
from stepsight.prediction.answer import Prediction
from stepsight.prediction.compare import Comparison
from stepsight.prediction.display import rate, share, size, source_look, time
from stepsight.prediction.memory import MemoryLine

SAME = 0.0005
"""Step times that differ by less than this share are the same."""
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?:–\d+)?(?![\w-])")
"""A number, or a range of two, that stands by itself: not one in the name of a GPU or a kernel."""
DOUBT = 0.01
"""A verdict that is less likely than this to be wrong stands without its probability."""


def comparison_sentence(c: Comparison) -> str:
    """Which is faster, by what factor and by how much time; where steps do different work, by its rate."""
    if not c.same_work:
        return f"{_work_words(c)}: {_rate_words(c)}."
    if abs(c.after.step_us - c.before.step_us) <= SAME * c.before.step_us:
        return "A and B take the same time."
    by, ratio = time(abs(c.difference_us)), c.after.step_us / c.before.step_us
    if ratio < 1:
        return f"B's step is {share(1 - ratio)} shorter than A's: {by} less ({c.speedup:.2f}× as fast)."
    return f"B's step is {share(ratio - 1)} longer than A's: {by} more ({c.speedup:.2f}× as fast)."


def differences(c: Comparison) -> list[tuple[str, str, str]]:
    """What differs between A and B before any time: name, A's value, B's value."""
    one, other = _settings(c.before), _settings(c.after)
    rows = [(name, one.get(name, "–"), other.get(name, "–")) for name in dict.fromkeys((*one, *other))]
    return [row for row in (*rows, *_details(c), *_changed_gpu(c)) if row[1] != row[2]]


def _changed_gpu(c: Comparison) -> list[tuple[str, str, str]]:
    """Figures of one GPU that were changed (``--set platform.gpu.…``)."""
    a, b = c.before.gpu, c.after.gpu
    if a is None or b is None or a.name != b.name:
        return []
    return [(f"GPU {f.name}", str(getattr(a, f.name)), str(getattr(b, f.name))) for f in fields(a)]


def _details(c: Comparison) -> list[tuple[str, str, str]]:
    """Further choices that only one of the two has."""
    a, b = (p.setup.details if p.setup else () for p in (c.before, c.after))
    only_a, only_b = (", ".join(x for x in one if x not in two) for one, two in ((a, b), (b, a)))
    return [("settings", only_a or "–", only_b or "–")]


def _settings(p: Prediction) -> dict[str, str]:
    """The settings of a prediction by name, as far as its setup states them."""
    found = {"workload": p.workload, "platform": p.platform, "GPUs": f"{len(p.ranks):,}"}
    setup = p.setup
    if setup is None:
        return found
    found["batch"] = rate(setup.samples) if setup.samples else ""
    found["sequence"] = f"{setup.sequence:,}" if setup.sequence else ""
    found["precision"] = setup.precision
    found |= {name: f"{size:,}" for name, size in setup.parallel if size > 1}
    found["ZeRO stage"] = str(setup.zero or "")
    found["recompute"] = setup.recompute
    found["framework"] = setup.framework
    return {name: value for name, value in found.items() if value}


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
        return f"A and B are equally fast{rates}"
    return f"B trains {max(ratio, 1 / ratio):.2f}× {'faster' if ratio > 1 else 'slower'} than A{rates}"


def fits_words(m: MemoryLine) -> str:
    """The verdict on memory, with its probability where there is doubt."""
    sure = min(m.fit_probability, 1 - m.fit_probability) < DOUBT
    if m.fits:
        return "fits" if sure else f"fits with a probability of {100 * m.fit_probability:.0f} %"
    by = f"does not fit, by {size(m.excess_bytes)}"
    return by if sure else f"{by} ({100 * m.fit_probability:.0f} % chance to fit)"


_MEMORY = {
    "buckets": "gradient buckets",
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


def sources_sentence(shares: Mapping[str, float]) -> str:
    """What the times of a prediction come from, best source first."""
    order = [source.label for source in Source]
    known = sorted(shares.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    parts = [f"{share(part)} from {source_look(name).word}" for name, part in known if part > 0]
    return f"device time: {', '.join(parts)}" if parts else "no kernel ran, so nothing was estimated"


TERMS: Mapping[str, str] = {
    "step time": "From the start of one training step to the start of the next, in the steady state.",
    "90 % interval": "The range that should hold 90 % of measurements of this step.",
    "rank": "One process with one GPU.",
    "host-bound": "The GPU is idle because the host has not launched the next kernel yet.",
    "launch overhead": "Host time spent between operators and on launching their kernels.",
    "overlap": "Compute and communication running at the same time on different streams.",
    "exposed communication": "Communication that overlaps no compute: the GPU computes nothing meanwhile.",
    "straggler": "The rank that arrives last at a collective; the others wait for it.",
    "imbalance": "Compute time of the busiest rank over the mean of all ranks, minus one.",
    "contention": "Kernels that run at the same time slow each other down.",
    "step without it": "The step time when this part takes no time and everything else stays: "
    "an upper bound on what speeding it up can gain.",
    "sum of kernels": "The busiest stream's kernel times added up, without launches, waits and overlap.",
    "speed of light": "The least time that the GPU's peak FLOP/s and memory bandwidth allow (roofline).",
    "MFU": "Model FLOPs utilisation: the model's FLOPs (no recomputation) over what the GPUs could do at "
    "their dense peak in the same time.",
    "spread": "Standard deviation of ln(time): 0.05 is about ±5 %.",
    "similar GPU": "This GPU has no measurements; models fitted on others are scaled by the specifications.",
    "interpolation": "An answer between measured sizes.",
    "extrapolation": "An answer outside the measured sizes: the interval is wider.",
}
"""Term and meaning. docs/glossary.md is made of these (a test compares them)."""


def anchor(term: str) -> str:
    """The term's place on a page."""
    return "term-" + "".join(c if c.isalnum() else "-" for c in term.lower())


def markdown() -> str:
    """The glossary as a document."""
    lines = [
        f"- **{term}**: {meaning}" for term, meaning in sorted(TERMS.items(), key=lambda t: t[0].lower())
    ]
    return "# Glossary\n\nThe words of commands, pages and documents.\n\n" + "\n".join(lines) + "\n"
