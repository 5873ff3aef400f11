"""Traces: how well they open and link, and how well their steps are rebuilt and predicted.

A run is predicted by the models twice: as they ship, and with its own source left out of host tables, the
lookup model and slowdowns of concurrent work (`lab.fit.traces.left_out`). Constants of reading traces are
medians over sources and stay. Kernels without sizes keep the trace's times; their share of the GPU time is
part of every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.traces.left_out import Refits, left_out_prediction
from lab.fit.traces.runs import CNN, DLRM, SINGLE, TRANSFORMER, ScoredRun, scored_runs
from lab.score.frame import interval_score, show
from lab.score.traces.pairs import PairRow, operator_pair_rows, pair_rows, pair_scores
from stepsight.documents import to_json
from stepsight.prediction.breakdown import TimedBy
from stepsight.prediction.traced.predict import traced_step
from stepsight.score import CHOSEN, FIT, Figure, Score
from stepsight.simulate.timeline import Timeline, simulate
from stepsight.trace.job import collective_waiting, typical_step
from stepsight.trace.run import TraceRun

TOPIC = "traces"
DLRM_TARGET, TRANSFORMER_TARGET, CNN_TARGET, REPLAY_TARGET = 0.0521, 0.03, 0.06, 0.02
CORRELATION_TARGET, LINK_TARGET, FAR_OFF = 0.95, 0.99, 0.2


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run; times in ms.

    ``models_ms`` is predicted by the models as they ship, ``left_out_ms`` with its interval by models that
    never saw the run's source. ``timed_by`` are shares of the GPU time.
    """

    name: str
    set: str
    source: str
    measured_ms: float
    replay_ms: float
    anchored_ms: float
    models_ms: float
    left_out_ms: float
    low_ms: float
    high_ms: float
    timed_by: TimedBy
    not_scored: str = ""

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval that was predicted without the run's source."""
        return self.low_ms <= self.measured_ms <= self.high_ms

    def error(self, part: str) -> float:
        """The relative error of one of the predictions."""
        return float(getattr(self, f"{part}_ms")) / self.measured_ms - 1

    def line(self) -> str:
        """The row in words."""
        parts = ("replay", "anchored", "models", "left_out")
        errors = ", ".join(f"{part.replace('_', ' ')} {self.error(part):+.1%}" for part in parts)
        low, high = (bound / self.measured_ms - 1 for bound in (self.low_ms, self.high_ms))
        shares = (
            f"GPU time {self.timed_by.known_sizes:.0%} recorded sizes, {self.timed_by.guessed_sizes:.0%}"
            f" counted, {self.timed_by.trace:.0%} measured"
        )
        left = f" (not scored: {self.not_scored})" if self.not_scored else ""
        interval = f"interval {low:+.0%} to {high:+.0%}" + ("" if self.inside else " MISSES it")
        return f"{self.name} {self.measured_ms:.2f} ms: {errors}, {interval}; {shares}{left}"

    def document(self) -> dict[str, object]:
        """The row with the field names of the other tables of steps."""
        return {
            **msgspec.to_builtins(self), "kept_share": self.timed_by.trace, "predicted_ms": self.left_out_ms,
            "inside": self.inside,
        }  # fmt: skip


@click.command(TOPIC)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables, or of traces.")
@click.option("--each", "each_row", is_flag=True, help="Every run with its predictions.")
@click.option("--pairs", "only_pairs", is_flag=True, help="Only what-ifs: one GPU's trace against another's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, each_row: bool, only_pairs: bool, as_json: bool) -> None:
    """Traces: replayed, anchored on their own times, and predicted by the models alone."""
    tables = data_folder(data)
    folder = traces_in(tables)
    if not only_pairs and not each_row:
        show(scores(tables), as_json=as_json)
        return
    found: Iterable[PairRow | RunRow] = all_pairs(tables, folder) if only_pairs else rows(folder)
    if as_json:
        listed = [r.document() if isinstance(r, RunRow) else msgspec.to_builtins(r) for r in found]
        click.echo(to_json(listed))
        return
    for row in found:
        click.echo(row.line())


def traces_in(data: Path) -> Path:
    """The folder of traces: a folder "traces" inside the data, or the folder itself."""
    return data / "traces" if (data / "traces").is_dir() else data


def rows(folder: Path) -> Iterable[RunRow]:
    """Every run under a folder of traces."""
    refits = Refits.from_tables()
    return (row_of(scored, refits) for scored in scored_runs(folder, single=True))


def row_of(scored: ScoredRun, refits: Refits) -> RunRow:
    """Score one run."""
    run = scored.run
    replay = simulate_trace(run, replay=True)
    anchored = simulate_trace(run)
    models = simulate_trace(run, models_only=True)
    left_out = left_out_prediction(run, scored.host, refits)
    timed_by = (left_out.origin.timed_by if left_out.origin else None) or TimedBy()
    return RunRow(
        scored.name, scored.kind, scored.host, scored.measured_us / 1e3, replay.step_us / 1e3,
        anchored.step_us / 1e3, models.step_us / 1e3, left_out.step_time_us / 1e3,
        left_out.low_us / 1e3, left_out.high_us / 1e3, timed_by, scored.left_out,
    )  # fmt: skip


def simulate_trace(run: TraceRun, *, replay: bool = False, models_only: bool = False) -> Timeline:
    """The timeline alone, without intervals and sensitivities: several times as fast."""
    made = traced_step(run, replay=replay, models_only=models_only)
    return simulate(made.job.job, made.platform, replay=made.replayed, steps=made.steps, seen=made.job.seen)


def scores(data: Path) -> list[Score]:
    """Every run as shipped and with its own source left out, and what-ifs between GPUs."""
    folder = traces_in(data)
    return [*board(list(rows(folder))), *reading_scores(folder), *pair_scores(all_pairs(data, folder))]


def all_pairs(data: Path, folder: Path) -> list[PairRow]:
    """What-ifs against what is: pairs of traces, and of operator lists where the table is there."""
    return [*pair_rows(folder), *operator_pair_rows(data)]


def board(found: Sequence[RunRow]) -> list[Score]:
    """The scores of all runs by what they train; traces of a single step stand apart."""
    scored = [r for r in found if not r.not_scored]
    used = [r for r in scored if r.set != SINGLE]
    lines = [
        _runs("replay", used, "replay", REPLAY_TARGET, "all training runs, GPU timeline", CHOSEN),
        _runs("anchored on its own GPU", used, "anchored", REPLAY_TARGET, "scaled to the usual step", FIT),
    ]
    bars = ((DLRM, DLRM_TARGET), (TRANSFORMER, TRANSFORMER_TARGET), (CNN, CNN_TARGET), (SINGLE, None))
    for kind, target in bars:
        mine = [r for r in scored if r.set == kind]
        if mine:
            own = "one step, inference, tests" if kind == SINGLE else "host times from other steps or ranks"
            name = f"{kind}, models only, own source left out"
            lines.append(_runs(name, mine, "left_out", target, own, CHOSEN, note=True))
            lines.append(_runs(f"{kind}, models only, as shipped", mine, "models", None, own, FIT))
    worst = max((abs(r.error("anchored")) for r in used), default=0.0)
    lines.append(
        Score.reading(
            TOPIC, "anchored on its own GPU, the worst run", len(used), Figure("worst error", worst),
            "scaled to the usual step", bar=REPLAY_TARGET, exposure=FIT,
        )
    )  # fmt: skip
    single = [r for r in scored if r.set == SINGLE]
    return [*lines, *_intervals("", used), *_intervals(", single steps", single)]


def _intervals(which: str, found: Sequence[RunRow]) -> list[Score]:
    """Whether intervals, of predictions without the run's own source, say how far off a run may be."""
    if not found:
        return []
    far = [r for r in found if abs(r.error("left_out")) > FAR_OFF and not r.inside]
    return [
        Score.reading(
            TOPIC, f"further off than 20 % and outside its interval{which}", len(found),
            Figure("of all runs", len(far) / len(found)), "own source left out", target="none", met=not far,
            note="; ".join(r.line() for r in far), exposure=CHOSEN,
        ),
        interval_score(
            TOPIC, f"runs inside their 90 % interval{which}", sum(r.inside for r in found), len(found),
            "own source left out", exposure=CHOSEN,
        ),
    ]  # fmt: skip


def _runs(
    name: str, found: Sequence[RunRow], part: str, target: float | None, used: str, exposure: str,
    *, note: bool = False,
) -> Score:  # fmt: skip
    values = [getattr(r, f"{part}_ms") for r in found]
    lines = "; ".join(r.line() for r in found) if note else ""
    return Score.of(
        TOPIC, name, values, [r.measured_ms for r in found], used, gmae_target=target, note=lines,
        exposure=exposure,
    )  # fmt: skip


def reading_scores(folder: Path) -> list[Score]:
    """How well kernels link to operators, and how well a replay tells who waits for whom."""
    runs = [scored for scored in scored_runs(folder) if not scored.left_out]
    linked = min((r.linked.link_rate for s in runs for r in s.run.ranks), default=1.0)
    figure = Figure("linked", linked, "more")
    lines = [_asked("kernels linked to their operator", figure, len(runs), LINK_TARGET)]
    for scored in runs:
        run = scored.run
        if len(run.ranks) == run.world_size > 1:
            by_rank, by_call = waiting_correlation(run, simulate_trace(run, replay=True))
            if np.isfinite(by_rank):
                figure = Figure("correlation", by_rank, "more", is_share=False)
                note, kind = f"by rank {by_rank:.3f}, by call {by_call:.3f}", "waiting in collectives"
                lines.append(_asked(f"{kind}, {scored.name}", figure, 1, CORRELATION_TARGET, note, kind))
    return lines


def waiting_correlation(run: TraceRun, replay: Timeline) -> tuple[float, float]:
    """Correlation, over ranks and over calls, of the waiting inside collectives with the trace's."""
    seen = [[us for _, us in of_rank] for of_rank in collective_waiting(run, typical_step(run))]
    made = _simulated_waiting(replay, run)
    by_rank = _correlation([sum(w) for w in seen], [sum(w) for w in made])
    return by_rank, _correlation([x for w in seen for x in w], [x for w in made for x in w])


def _simulated_waiting(timeline: Timeline, run: TraceRun) -> list[list[float]]:
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


def _asked(
    name: str, figure: Figure, count: int, target: float, note: str = "worst run", kind: str = ""
) -> Score:
    """A figure that is to be high; nothing of it is fitted."""
    return Score.reading(TOPIC, name, count, figure, "", bar=target, note=note, exposure=CHOSEN, kind=kind)
