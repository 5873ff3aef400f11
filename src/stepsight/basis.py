"""What a constant that was chosen or read off runs rests on; each area's `constants.py` lists its own."""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_RUNS = 3
"""Independent runs below which a constant that physics does not state is poorly founded."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a constant is measured in, rests on, and moves.

    ``runs`` counts the independent runs (machines, tables or collections of traces) that it was read off;
    none where it was chosen, or where hardware, a format or a library's code states it.
    """

    unit: str
    rests_on: str
    moves: str
    runs: int | None = None

    @property
    def few_runs(self) -> bool:
        """Whether it was read off fewer than three independent runs."""
        return self.runs is not None and self.runs < FEWEST_RUNS
