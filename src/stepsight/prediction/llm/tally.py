"""What a step's times come from: time by source, notes, and what has no model of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepsight.estimate import Estimate, Source


@dataclass(slots=True)
class Tally:
    """Times by where they come from; ``unmodelled`` by name and source, where that is a fallback."""

    sources: dict[Source, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    unmodelled: dict[tuple[str, str], float] = field(default_factory=dict)

    def count(self, e: Estimate, time_us: float, name: str) -> None:
        self.sources[e.source] = self.sources.get(e.source, 0.0) + time_us
        if e.note:
            self.notes.setdefault(name, e.note)
        if e.source in (Source.ROOFLINE, Source.DEFAULT):
            key = (name, e.source.label)
            self.unmodelled[key] = self.unmodelled.get(key, 0.0) + time_us

    def add(self, other: Tally) -> None:
        for source, time_us in other.sources.items():
            self.sources[source] = self.sources.get(source, 0.0) + time_us
        for name, note in other.notes.items():
            self.notes.setdefault(name, note)
        for key, time_us in other.unmodelled.items():
            self.unmodelled[key] = self.unmodelled.get(key, 0.0) + time_us
