"""What a calibration measures, in which order, and how much of its time each stage may take."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.calibrate.constants import SHORTEST_S
from stepsight.errors import InputError
from stepsight.records import seconds

KERNELS, LOOKUPS, HOST, COLLECTIVES, CONTENTION, REHEARSAL, NOISE = (
    "kernels", "lookups", "host", "collectives", "contention", "rehearsal", "noise",
)  # fmt: skip
SHARED = (KERNELS, COLLECTIVES, CONTENTION)
"""Stages that say the same whatever stack trains."""
SHARES = {KERNELS: 0.24, LOOKUPS: 0.18, HOST: 0.03, COLLECTIVES: 0.08, CONTENTION: 0.04, REHEARSAL: 0.43}
"""Of the budget. Rehearsal steps tell what no microbenchmark does, so they get nearly half of it."""
COLLECTIVE_KINDS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast")
COLLECTIVE_BYTES = tuple(4 * 2**e for e in (4, 6, 8, 10, *range(11, 24)))
"""64 bytes to 32 MiB, densest where gradient buckets and pooled embeddings lie."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much there is to do when time allows, and how often each thing is repeated."""

    kernels: int = 2400
    kernel_repeats: int = 9
    tables: int = 400
    table_repeats: int = 7
    collective_repeats: int = 6
    contention_repeats: int = 6
    dlrms: int = 16
    transformers: int = 12
    steps: int = 8
    blocks: int = 2
    passes: int = 2

    @classmethod
    def within(cls, budget_s: float) -> Amounts:
        """The full amounts from five minutes on; fewer samples, not fewer kinds, below."""
        share = min(1.0, max(budget_s / 300.0, 0.1))
        full = cls()
        return cls(
            kernels=round(full.kernels * share), tables=round(full.tables * share),
            dlrms=max(3, round(full.dlrms * share)), transformers=max(3, round(full.transformers * share)),
            passes=full.passes if share > 0.5 else 1,
            kernel_repeats=full.kernel_repeats if share > 0.5 else 5,
        )  # fmt: skip


def budget_seconds(text: str) -> float:
    """``5m``, ``90s``, ``1h``; a bare number is seconds."""
    found = seconds(text, "--budget")
    if found < SHORTEST_S:
        raise InputError(f"--budget {text}", "too short to measure anything", f"at least {SHORTEST_S:.0f}s")
    return found
