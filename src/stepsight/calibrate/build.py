"""The last stage: fit the journal's samples, rehearse on paper, write the folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.calibrate.fit import fit_samples, pace_and_step, step_us
from stepsight.calibrate.folder import drafted, write_folder
from stepsight.calibrate.journal import Journal
from stepsight.calibrate.rehearsal import KINDS, InStep, Rehearsal, find_factors
from stepsight.calibrate.session import NOISE, REHEARSAL
from stepsight.constants import area
from stepsight.platform.load import load_platform
from stepsight.run.pace import followed
from stepsight.workload.files import parse_workload

_CONSTANTS = area("calibrate")
NOISY = _CONSTANTS.number("NOISY")


def build(journal: Journal, folder: Path, name: str, device: str, ranks: int) -> dict[str, Any]:
    """Write the platform folder from the samples; what there is to say about it."""
    samples: dict[str, Sequence[Mapping[str, Any]]] = {}
    for sample in journal.samples:
        samples.setdefault(sample["stage"], []).append(sample)  # type: ignore[attr-defined]
    fitted = fit_samples(samples, device)
    notes = _notes(samples, fitted.repeat, device, ranks)
    plain = InStep(dict.fromkeys(KINDS, 1.0), {}, {})
    with drafted(folder) as draft:
        write_folder(draft, name, device, ranks, fitted, plain, notes)
        platform = load_platform(draft)
        rehearsals = [
            Rehearsal.of(
                parse_workload(dict(r["document"]), r["name"]), step_us(r["steps_us"]), platform, device
            )
            for r in _pooled(samples.get(REHEARSAL, ()))
        ]
        in_step = find_factors(rehearsals, platform)
        write_folder(draft, name, device, ranks, fitted, in_step, notes)
    return {
        **notes,
        "in_step": in_step.factors,
        "rehearsal_spread": round(in_step.spread, 4),
        "fitted": fitted,
    }


def _pooled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a workload, with the blocks of all its passes, each brought to the pace of the middle pass."""
    passes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        passes.setdefault(row["name"], []).append(row)
    paced = [r for r in rows if r.get("pace_us")]
    usual = float(np.median([r["pace_us"] for r in paced])) if paced else 1.0
    pairs = [p for p in passes.values() if len(p) > 1 and all(r.get("pace_us") for r in p)]
    share = followed([pace_and_step(p[0], p[-1]) for p in pairs]) if pairs else 0.0
    pooled = []
    for members in passes.values():
        steps = [
            [t * (usual / (r.get("pace_us") or usual)) ** share for t in block]
            for r in members
            for block in r["steps_us"]
        ]
        pooled.append({**members[0], "steps_us": steps})
    return pooled


def _notes(
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    repeat: Mapping[str, Mapping[str, float]],
    device: str,
    ranks: int,
) -> dict[str, Any]:
    """How quiet the machine was, in figures."""
    rehearsed = _pooled(samples.get(REHEARSAL, ()))
    blocks = [[np.log(step_us([b])) for b in r["steps_us"]] for r in rehearsed]
    step = float(np.median([np.std(b) for b in blocks])) if blocks else 0.0
    states = list(samples.get(NOISE, ()))
    stolen = 0.0
    if len(states) >= 2 and "ticks" in states[0]:
        ticks = states[-1]["ticks"] - states[0]["ticks"]
        stolen = (states[-1]["stolen"] - states[0]["stolen"]) / max(ticks, 1)
    kernel = repeat.get("kernels", {}).get("median", 0.0)
    paces = [r["pace_us"] for r in samples.get(REHEARSAL, ()) if r.get("pace_us")]
    return {
        "device": device,
        "ranks": ranks,
        "date": time.strftime("%Y-%m-%d"),
        "samples": {stage: len(rows) for stage, rows in samples.items() if stage != NOISE},
        "kernel_repeat_error": kernel,
        "step_repeat_error": round(step, 4),
        "load_at_start": states[0]["load"] if states else 0.0,
        "stolen_share": round(stolen, 4),
        "pace_us": round(float(np.median(paces)), 2) if paces else None,
        "noisy": bool(kernel > NOISY or step > NOISY or stolen > 0.02),
    }
