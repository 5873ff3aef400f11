"""Host overheads of one workload, told from the others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from stepsight.overheads.tables import Stat
from stepsight.trace.host_times import gathered, with_individual
from stepsight.trace.job import clean_steps, rank_program
from stepsight.trace.program import StepProgram
from stepsight.trace.run import TraceRun
from stepsight.validate.score import Score
from stepsight.validate.trace_runs import scored_runs

TOPIC = "overheads"
_FEWEST_OPS = 50


def scores(data: Path, rows: str = "heldout") -> list[Score]:
    """The published studies workload by workload, then the traces step by step."""
    return [_published(data / "overheads"), *_traces(data / "traces")]


def _published(folder: Path) -> Score:
    """T2 of an operator in one workload from its mean over the other workloads."""
    study = msgspec.json.decode((folder / "overheads_2022-02-14.json").read_bytes())["dicts"][0]
    told, seen = [], []
    for cells in study.values():
        by_workload: dict[str, list[Stat]] = {}
        for key, cell in cells.items():
            by_workload.setdefault(key.split("|")[0], []).append(Stat(*cell))
        for workload, mine in by_workload.items():
            others = [s for w, stats in by_workload.items() if w != workload for s in stats]
            if others:
                told.append(Stat.pooled(others).mean)
                seen.append(Stat.pooled(mine).mean)
    return Score.of(
        TOPIC, "T2 from other workloads (shared)", told, seen, "published V100 study, op by workload"
    )


def _traces(folder: Path) -> list[Score]:
    told, seen, names = [], [], []
    for scored in scored_runs(folder):
        if scored.left_out:
            continue
        pair = _one_from_others(scored.run)
        if pair is not None:
            told.append(pair[0])
            seen.append(pair[1])
            names.append(f"{scored.name} {pair[0] / pair[1] - 1:+.1%}")
    if not told:
        return []
    where = "host time of a step from the other steps, or of a rank from the other ranks"
    return [Score.of(TOPIC, "whole step's host time (individual)", told, seen, where, note="; ".join(names))]


def _one_from_others(run: TraceRun) -> tuple[float, float] | None:
    """Host time of one rank's step, gathered from others and as it was."""
    steps, ranks = clean_steps(run), run.ranks
    if len(steps) > 1:
        program = rank_program(run, ranks[0], steps[0])
        others = [rank_program(run, ranks[0], s) for s in steps[1:]]
    elif len(ranks) > 1:
        program = rank_program(run, ranks[0], steps[0])
        others = [rank_program(run, r, steps[0]) for r in ranks[1:]]
    else:
        return None
    if len(program.ops) < _FEWEST_OPS:
        return None
    return host_time_us(with_individual(program, gathered(others))), host_time_us(program)


def host_time_us(program: StepProgram) -> float:
    """Host time of a step's ops, waits for the device not counted."""
    total = 0.0
    for traced in program.ops:
        op, times = traced.op, traced.op.overhead_us
        if times is None:
            continue
        launches = len(op.kernels) + (op.collective is not None)
        inside = times.t2 + times.t3 + launches * times.t4 + max(launches - 1, 0) * times.t5
        total += times.t1 + (inside if launches else times.t5)
    return float(np.float64(total))
