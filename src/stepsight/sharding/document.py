"""A choice as plain data, for ``--json``."""

from __future__ import annotations

from typing import Any

import msgspec

from stepsight.sharding.choice import Choice, PlanCandidate
from stepsight.tables.plan import plan_dict, plan_summary


def document(choice: Choice) -> dict[str, Any]:
    """Everything that the console shows, and the winning plan itself."""
    found = choice.found
    return {
        "workload": choice.workload,
        "platform": choice.platform,
        "ranks": choice.ranks,
        "tables": choice.tables,
        "objective": choice.objective,
        "days": choice.days,
        "step_time_us": choice.winner.step_us,
        "lower_bound_us": found.bound_us,
        "gap": found.gap,
        "plans_priced": found.priced,
        "search_seconds": found.seconds,
        "room_bytes": choice.room_bytes,
        "level": choice.level,
        "winner": choice.winner.name,
        "candidates": [_candidate(c, choice.winner) for c in choice.candidates],
        "plan": plan_dict(choice.winner.plan),
        "embedding": msgspec.to_builtins(choice.figures) if choice.figures else None,
    }


def _candidate(candidate: PlanCandidate, winner: PlanCandidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "step_time_us": candidate.step_us,
        "day_us": list(candidate.day_us),
        "slower": candidate.step_us / winner.step_us - 1,
        "fits": candidate.fits,
        "why": candidate.why,
        "imbalance": candidate.imbalance,
        "kinds": plan_summary(candidate.plan),
        "ranks": [
            {"rank": rank, "lookup_us": lookup, "exchange_us": exchange, "memory_bytes": memory}
            for rank, (lookup, exchange, memory) in enumerate(
                zip(candidate.lookup_us, candidate.exchange_us, candidate.memory_bytes, strict=True)
            )
        ],
    }
