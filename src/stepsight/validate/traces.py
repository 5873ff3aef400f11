"""Traces: how well they open and link, and how well their steps are rebuilt and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stepsight.errors import InputError
from stepsight.prediction.summary import naive_us
from stepsight.simulate.timeline import Timeline
from stepsight.trace.host_times import gathered
from stepsight.trace.job import clean_steps, collective_waiting, rank_program, typical_step
from stepsight.trace.operator_kernels import Agreement, check_operators
from stepsight.trace.platforms import guess_platform
from stepsight.trace.prediction import INDIVIDUAL, SHARED, simulate_trace
from stepsight.trace.program import StepProgram
from stepsight.trace.run import TraceRun
from stepsight.validate.score import Score
from stepsight.validate.trace_runs import DLRM, TRANSFORMER, ScoredRun, scored_runs

TOPIC = "traces"
_UNNAMED_GPU = "V100-SXM2-16G"
"""Traces from before deviceProperties: the ones here say V100 in their folder's name."""
DLRM_TARGET, TRANSFORMER_TARGET, REPLAY_TARGET, SHARED_POINTS = 0.0521, 0.03, 0.02, 0.022
CORRELATION_TARGET, LINK_TARGET, MAP_TARGET = 0.95, 0.99, 0.95


@dataclass(slots=True)
class Row:
    """One run: measured, rebuilt and predicted step times in µs."""

    name: str
    kind: str
    measured: float
    replay: float
    individual: float
    naive: float
    left_out: str = ""
    shared: float = float("nan")
    link_rate: float = 1.0
    waiting: tuple[float, float] | None = None
    agreement: Agreement = field(default_factory=Agreement)

    def line(self) -> str:
        """The row in words."""
        parts = (("replay", self.replay), ("predict", self.individual), ("shared", self.shared))
        said = ", ".join(f"{k} {v / self.measured - 1:+.1%}" for k, v in parts if np.isfinite(v))
        left = f" (left out: {self.left_out})" if self.left_out else ""
        naive = f"naive {self.naive / self.measured - 1:+.0%}"
        return f"{self.name} {self.measured / 1e3:.2f} ms: {said}, {naive}{left}"


def scores(folder: Path) -> list[Score]:
    """Score every training run under a folder of traces."""
    rows: list[Row] = []
    runs: list[ScoredRun] = []
    for scored in scored_runs(folder):
        rows.append(_row(scored))
        runs.append(scored)
    _add_shared(rows, runs)
    return _board(rows)


def _row(scored: ScoredRun) -> Row:
    run = scored.run
    platform = _platform(run)
    replay = simulate_trace(run, platform, replay=True)
    predicted = simulate_trace(run, platform, overheads=INDIVIDUAL)
    row = Row(
        scored.name, scored.kind, scored.measured_us, replay.step_us, predicted.step_us, naive_us(predicted),
        scored.left_out, link_rate=min(r.linked.link_rate for r in run.ranks),
    )  # fmt: skip
    for rank in run.ranks[:1]:
        row.agreement.add(check_operators(rank.linked))
    if len(run.ranks) == run.world_size > 1:
        row.waiting = waiting_correlation(run, replay)
    return row


def _platform(run: TraceRun) -> str | None:
    try:
        guess_platform(run)
        return None
    except InputError:
        return f"{run.world_size}x{_UNNAMED_GPU}"


def _own_programs(scored: ScoredRun) -> list[StepProgram]:
    """This run's steps, for other workloads on the same host to share."""
    run = scored.run
    return [rank_program(run, r, s) for r in run.ranks for s in clean_steps(run)[:3]]


def _add_shared(rows: list[Row], runs: Sequence[ScoredRun]) -> None:
    """Predict each run with the host times of other workloads of the same host.

    Traces do not name their host; those of one collection (top folder) share one, and another
    folder inside it is another workload.
    """
    for row, scored in zip(rows, runs, strict=True):
        others = [s for s in runs if s.host == scored.host and s.workload != scored.workload]
        if others:
            pool = gathered(p for s in others for p in _own_programs(s))
            row.shared = simulate_trace(
                scored.run, _platform(scored.run), overheads=SHARED, shared=pool
            ).step_us


def waiting_correlation(run: TraceRun, replay: Timeline) -> tuple[float, float]:
    """Correlation, over ranks and over calls, of the waiting inside collectives with the trace's."""
    step = typical_step(run)
    seen, made = collective_waiting(run, step), simulated_waiting(replay, run)
    by_rank = _correlation([sum(w) for w in seen], [sum(w) for w in made])
    by_call = _correlation([x for w in seen for x in w], [x for w in made for x in w])
    return by_rank, by_call


def simulated_waiting(timeline: Timeline, run: TraceRun) -> list[list[float]]:
    """The same from the simulation."""
    result = []
    for rank in run.ranks:
        times = timeline.rank(rank.rank)
        meetings = [i for i, c in enumerate(times.lane.category) if c == "communication"]
        result.append([float(times.begin_us[i] - times.start_us[i]) for i in meetings])
    return result


def _correlation(a: list[float], b: list[float]) -> float:
    if len(a) != len(b) or len(a) < 2 or np.std(a) == 0 or np.std(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _board(rows: list[Row]) -> list[Score]:
    used = [r for r in rows if not r.left_out]
    board = [_errors("replay", used, "replay", REPLAY_TARGET, "all training runs, GPU timeline")]
    for kind, target in ((DLRM, DLRM_TARGET), (TRANSFORMER, TRANSFORMER_TARGET), ("cnn", None)):
        mine = [r for r in used if r.kind == kind]
        if mine:
            board += _of_kind(kind, mine, target)
    board += _checks(rows)
    return board


def _of_kind(kind: str, rows: list[Row], target: float | None) -> list[Score]:
    where = f"{kind} runs; host times from other steps or ranks"
    individual = _errors(f"{kind}, individual overheads", rows, "individual", target, where)
    known = [r for r in rows if np.isfinite(r.shared)]
    board = [individual]
    if known:
        shared = _errors(
            f"{kind}, shared overheads", known, "shared", None, "host times from other workloads"
        )
        bar = individual.gmae + SHARED_POINTS
        board.append(
            Score(
                TOPIC, shared.name, shared.rows, shared.gmae, shared.mape, shared.rows_used,
                f"GMAE ≤ individual + {SHARED_POINTS:.1%}", shared.gmae <= bar,
            )
        )  # fmt: skip
    board.append(_errors(f"{kind}, naive sum of kernels", rows, "naive", None, "baseline, no host, no waits"))
    return board


def _errors(name: str, rows: list[Row], part: str, target: float | None, where: str) -> Score:
    note = "; ".join(r.line() for r in rows) if part in ("individual", "replay") else ""
    values = [getattr(r, part) for r in rows]
    return Score.of(TOPIC, name, values, [r.measured for r in rows], where, gmae_target=target, note=note)


def _checks(rows: list[Row]) -> list[Score]:
    linked = min((r.link_rate for r in rows), default=1.0)
    agreement = Agreement()
    for row in rows:
        agreement.add(row.agreement)
    odd = ", ".join(f"{n}×{op}→{'+'.join(f)}" for (op, f), n in agreement.others.most_common(6))
    board = [
        _share("kernels linked to their operator", linked, len(rows), LINK_TARGET, "worst run"),
        _share("operator → kernels map", agreement.share, agreement.checked, MAP_TARGET, f"others: {odd}"),
    ]
    for row in rows:
        if row.waiting is not None and not row.left_out and np.isfinite(row.waiting[0]):
            by_rank, by_call = row.waiting
            note = f"by rank {by_rank:.3f}, by call {by_call:.3f}"
            board.append(_share(f"waiting in collectives, {row.name}", by_rank, 1, CORRELATION_TARGET, note))
    left = [f"{r.name}: {r.left_out}" for r in rows if r.left_out]
    if left:
        board.append(Score(TOPIC, "left out", len(left), 0.0, 0.0, "; ".join(left)))
    return board


def _share(name: str, value: float, rows: int, target: float, note: str) -> Score:
    """A share to be high: shown as what is missing from one."""
    return Score(
        TOPIC, name, rows, 1 - value, 1 - value, "1 − share", f"≥ {target:.0%}", value >= target, note
    )
