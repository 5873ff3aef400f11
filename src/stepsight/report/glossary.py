"""The words that pages and documents use, each explained once."""

from __future__ import annotations

from collections.abc import Mapping

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
    "step if it were free": "The step time when this part takes no time and everything else stays: "
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
