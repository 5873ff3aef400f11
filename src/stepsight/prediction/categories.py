"""What a device's time is called and which colour it has, the same in every report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepsight.prediction.summary import EXPOSED, IDLE, WAITING
from stepsight.simulate.price import COMMUNICATION


@dataclass(frozen=True, slots=True)
class Look:
    """A category's word and its colour's class in ``assets/page.css``."""

    word: str
    colour: str


_LOOKS: Mapping[str, Look] = {
    "gemm": Look("GEMM", "gemm"),
    "attention": Look("attention", "attention"),
    "conv": Look("convolution", "conv"),
    "embedding": Look("embedding", "embedding"),
    "vector": Look("vector", "vector"),
    "optimizer": Look("optimizer", "optimizer"),
    "copy": Look("copy", "copy"),
    COMMUNICATION: Look("communication", "communication"),
    EXPOSED: Look("communication, exposed", "communication"),
    WAITING: Look("waiting for other ranks", "waiting"),
    IDLE: Look("idle, host-bound", "idle"),
    "host": Look("host", "host"),
}

_SOURCES: Mapping[str, tuple[str, str]] = {
    "trace": ("durations in the trace", "seen"),
    "measured": ("measurements of this hardware", "best"),
    "learned": ("models fitted on this GPU", "fitted"),
    "transferred": ("models of a similar GPU", "carried"),
    "roofline": ("speed of light × an assumed efficiency", "light"),
    "default": ("defaults for unknown operations", "unknown"),
}


def look(category: str) -> Look:
    """How a category is shown; one that nobody listed keeps its own name."""
    return _LOOKS.get(category) or Look(category.replace("_", " "), "other")


def source_look(label: str) -> Look:
    """How a source of times is shown, by its label."""
    word, colour = _SOURCES.get(label, (label, "other"))
    return Look(word, colour)
