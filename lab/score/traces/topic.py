"""Traces: how well they open and link, and how well their steps are rebuilt and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.traces.runs import CNN, DLRM, SINGLE, TRANSFORMER, ScoredRun, scored_runs
from lab.score.frame import show
from lab.score.steps import NAIVE
from lab.score.traces.operator_kernels import Agreement, check_operators
from lab.score.traces.operator_pairs import operator_pair_rows
from lab.score.traces.pairs import PairRow, pair_rows, pair_scores
from lab.score.traces.rows import RunRow, rows
from lab.score.traces.shared_hosts import SharedHosts
from lab.score.traces.tables import show_pairs, show_rules, show_runs
from stepsight.errors import InputError
from stepsight.prediction.breakdown import naive_us
from stepsight.prediction.traced.jobs import INDIVIDUAL, PACED, SHARED
from stepsight.prediction.traced.predict import simulate_trace
from stepsight.score import CHOSEN, FIT, Figure, Score, gmae, interval_score
from stepsight.simulate.timeline import Timeline
from stepsight.trace.step.job import collective_waiting, rank_program, typical_step
from stepsight.trace.step.pauses import MUCH_RECORDING, recording_gaps, sleeps
from stepsight.trace.step.platforms import guess_platform
from stepsight.trace.step.run import TraceRun

TOPIC = "traces"
_UNNAMED_GPU = "V100-SXM2-16G"
"""Traces from before deviceProperties: the ones here say V100 in their folder's name."""
DLRM_TARGET, TRANSFORMER_TARGET, CNN_TARGET, REPLAY_TARGET = 0.0521, 0.03, 0.06, 0.02
SHARED_POINTS, FAR_OFF = 0.022, 0.2
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
    paced: float = float("nan")
    blind: float = float("nan")
    recording: float = 0.0
    """What the profiler spent on arguments it cannot record, in µs a step."""
    sleeps: float = 0.0
    """What the program sleeps on purpose, in µs a step."""
    in_time: float = float("nan")
    """Predicted without the wait for ranks that were not recorded."""
    link_rate: float = 1.0
    waiting: tuple[float, float] | None = None
    agreement: Agreement = field(default_factory=Agreement)

    @property
    def dominated_by_profiler(self) -> bool:
        """Whether its measured step is in good part the profiler's, which no other workload can tell."""
        return self.recording > MUCH_RECORDING * self.measured

    def line(self) -> str:
        """The row in words."""
        parts = (
            ("replay", self.replay), ("predict", self.individual), ("absent peers in time", self.in_time),
            ("shared", self.shared), ("at its pace", self.paced), ("other hosts", self.blind),
        )  # fmt: skip
        said = ", ".join(f"{k} {v / self.measured - 1:+.1%}" for k, v in parts if np.isfinite(v))
        left = f" (left out: {self.left_out})" if self.left_out else ""
        naive = f"naive {self.naive / self.measured - 1:+.0%}"
        return f"{self.name} {self.measured / 1e3:.2f} ms: {said}, {naive}{left}"


def traces_in(data: Path) -> Path:
    """The folder of traces: a folder "traces" inside the data, or the folder itself."""
    return data / "traces" if (data / "traces").is_dir() else data


@click.command(TOPIC)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables, or of traces.")
@click.option("--without", multiple=True, metavar="RULE", help="Switch a rule off (--list-rules names them).")
@click.option("--list-rules", is_flag=True, help="The rules, what each rests on and which figure it moves.")
@click.option("--each", "each_row", is_flag=True, help="Every run beside its predictions.")
@click.option("--pairs", "only_pairs", is_flag=True, help="Only what-ifs: one GPU's trace against another's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    data: Path | None, without: tuple[str, ...], list_rules: bool, each_row: bool, only_pairs: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Traces: replayed, anchored on their own times, and predicted by the models alone."""
    if list_rules:
        show_rules(as_json=as_json)
        return
    tables = data_folder(data)
    folder = traces_in(tables)
    if only_pairs:
        show_pairs(all_pairs(tables, folder), as_json=as_json)
    elif each_row:
        show_runs(rows(folder, without), as_json=as_json)
    else:
        show(scores(tables, without=without), as_json=as_json)


def all_pairs(data: Path, folder: Path) -> list[PairRow]:
    """What-ifs against what is: pairs of traces, and of operator lists where the table is there."""
    return [*pair_rows(folder), *operator_pair_rows(data)]


def board(found: Sequence[RunRow]) -> list[Score]:
    """The scores of all runs by what they train; traces of a single step stand apart."""
    scored = [r for r in found if not r.not_scored]
    used = [r for r in scored if r.set != SINGLE]
    lines = [_runs("replay", used, "replay", REPLAY_TARGET, "all training runs, GPU timeline", CHOSEN)]
    lines += [
        _runs("anchored on its own GPU", used, "anchored", REPLAY_TARGET, "scaled to the usual step", FIT)
    ]
    bars = ((DLRM, DLRM_TARGET), (TRANSFORMER, TRANSFORMER_TARGET), (CNN, CNN_TARGET), (SINGLE, None))
    for kind, target in bars:
        mine = [r for r in scored if r.set == kind]
        if mine:
            own = "one step, inference, tests" if kind == SINGLE else "host times from other steps or ranks"
            name = f"{kind}, models only, own source left out"
            lines.append(_runs(name, mine, "left_out", target, own, CHOSEN, note=True))
            lines.append(_runs(f"{kind}, models only, as shipped", mine, "models", None, own, FIT))
            lines.append(_runs(f"{kind}, models only, sizes guessed", mine, "guessed", None, own, FIT))
    return [*lines, _worst("anchored", used), *_intervals("", used), *_intervals(", single steps", [
        r for r in scored if r.set == SINGLE
    ])]  # fmt: skip


def _worst(part: str, found: Sequence[RunRow]) -> Score:
    worst = max((abs(r.error(part)) for r in found), default=0.0)
    name, met = f"{part} on its own GPU, the worst run", worst <= REPLAY_TARGET
    return Score.reading(
        TOPIC, name, len(found), Figure("worst error", worst), "scaled to the usual step",
        target=f"≤ {REPLAY_TARGET:.0%}", met=met, exposure=FIT,
    )  # fmt: skip


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
    said = "; ".join(r.line() for r in found) if note else ""
    return Score.of(
        TOPIC, name, values, [r.measured_ms for r in found], used, gmae_target=target, note=said,
        exposure=exposure,
    )  # fmt: skip


def scores(data: Path, without: Sequence[str] = ()) -> list[Score]:
    """Every run as shipped and with its own source left out, and what-ifs between GPUs."""
    folder = traces_in(data)
    return [*board(list(rows(folder, without))), *pair_scores(all_pairs(data, folder))]


def host_scores(folder: Path) -> list[Score]:
    """Every training run under a folder of traces, by where its host times come from."""
    folder = traces_in(folder)
    found: list[Row] = []
    runs: list[ScoredRun] = []
    for scored in scored_runs(folder):
        found.append(_row(scored))
        runs.append(scored)
    _add_shared(found, runs)
    return _board(found)


def _row(scored: ScoredRun) -> Row:
    run = scored.run
    platform = _platform(run)
    replay = simulate_trace(run, platform, replay=True)
    predicted = simulate_trace(run, platform, overheads=INDIVIDUAL)
    row = Row(
        scored.name, scored.kind, scored.measured_us, replay.step_us, predicted.step_us, naive_us(predicted),
        scored.left_out, recording=_recording_us(run), sleeps=_sleeps_us(run),
        link_rate=min(r.linked.link_rate for r in run.ranks),
    )  # fmt: skip
    if run.missing:
        row.in_time = simulate_trace(run, platform, overheads=INDIVIDUAL, late_peers=False).step_us
    for rank in run.ranks[:1]:
        row.agreement.add(check_operators(rank.facts))
    if len(run.ranks) == run.world_size > 1:
        row.waiting = waiting_correlation(run, replay)
    return row


def _recording_us(run: TraceRun) -> float:
    """Of the rank that has most of it: gaps of a step in which the profiler worked for itself."""
    step = typical_step(run)
    return max(sum(recording_gaps(r.linked, rank_program(run, r, step)).values()) for r in run.ranks)


def _sleeps_us(run: TraceRun) -> float:
    """Of the rank that sleeps most: its pauses that every step makes alike."""
    return max(sum(sleeps([rank_program(run, r, s) for s in range(run.steps)]).values()) for r in run.ranks)


def _platform(run: TraceRun) -> str | None:
    try:
        guess_platform(run)
        return None
    except InputError:
        return f"{run.world_size}x{_UNNAMED_GPU}"


def _add_shared(rows: list[Row], runs: Sequence[ScoredRun]) -> None:
    """Predict each run with host times of other workloads: of its host, and of other hosts alone."""
    hosts = SharedHosts(runs)
    for row, scored in zip(rows, runs, strict=True):
        if row.left_out:
            continue
        predict = partial(simulate_trace, scored.run, _platform(scored.run))
        others = hosts.other_hosts(scored)
        row.paced = predict(overheads=PACED, shared=others).step_us
        row.blind = predict(overheads=SHARED, shared=others).step_us
        siblings = hosts.same_host(scored)
        if siblings is not None:
            row.shared = predict(overheads=SHARED, shared=siblings).step_us


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
    replay = _errors("replay", used, "replay", REPLAY_TARGET, "all training runs, GPU timeline")
    board = [replace(replay, exposure=CHOSEN)]  # durations are the trace's
    for kind, target in ((DLRM, DLRM_TARGET), (TRANSFORMER, TRANSFORMER_TARGET), ("cnn", None)):
        mine = [r for r in used if r.kind == kind]
        if mine:
            board += _of_kind(kind, mine, target)
    board += _checks(rows)
    return board


def _of_kind(kind: str, rows: list[Row], target: float | None) -> list[Score]:
    where = f"{kind} runs; host times from other steps or ranks"
    board = [_errors(f"{kind}, individual overheads", rows, "individual", target, where)]
    awake = [r for r in rows if not r.sleeps]
    if awake and len(awake) < len(rows):
        asleep = "; ".join(f"{r.name}: {r.sleeps / 1e3:.0f} ms a step" for r in rows if r.sleeps)
        name = f"{kind}, individual overheads, none that sleeps"
        board.append(_errors(name, awake, "individual", target, f"{where}; left out for sleeping: {asleep}"))
    if any(np.isfinite(r.in_time) for r in rows):
        name = f"{kind}, absent peers in time"
        alone = [r for r in rows if np.isfinite(r.in_time)]
        board.append(_errors(name, alone, "in_time", None, "runs with one rank recorded of several"))
    board += _shared(kind, rows)
    naive = _errors(f"{kind}, {NAIVE}", rows, "naive", None, "baseline, no host, no waits")
    return [*board, replace(naive, predictor=NAIVE, same_rows_as=board[0].name)]


def _shared(kind: str, rows: list[Row]) -> list[Score]:
    """Host times from others, each line beside individual ones on the same rows."""
    siblings = [r for r in rows if np.isfinite(r.shared)]
    slowed = [r for r in siblings if r.dominated_by_profiler]
    board = []
    if len(siblings) > len(slowed):
        board.append(_beside_individual(kind, [r for r in siblings if not r.dominated_by_profiler]))
    if slowed:
        named = "; ".join(f"{r.name}: {r.recording / 1e3:.0f} ms a step" for r in slowed)
        whole = _beside_individual(kind, siblings)
        said = f"{whole.rows_used}, those included that the profiler slowed ({named})"
        board.append(replace(whole, name=f"{whole.name}, slowed too", rows_used=said, target="", met=None))
    pace = "host times from other hosts, at the pace of the run's other steps or ranks (three numbers)"
    board.append(_errors(f"{kind}, other hosts at its pace", rows, "paced", None, pace))
    board.append(_errors(f"{kind}, other hosts", rows, "blind", None, "host times from other hosts alone"))
    return board


def _beside_individual(kind: str, rows: list[Row]) -> Score:
    score = _errors(f"{kind}, shared overheads", rows, "shared", None, "")
    error, alone = (gmae(*_times(rows, part)) for part in ("shared", "individual"))
    where = f"host times from other workloads of the host; individual on these rows {alone:.1%}"
    target = f"GMAE ≤ individual + {SHARED_POINTS:.1%}"
    return replace(score, rows_used=where, target=target, met=error <= alone + SHARED_POINTS)


def _errors(name: str, rows: list[Row], part: str, target: float | None, where: str) -> Score:
    note = "; ".join(r.line() for r in rows) if part in ("individual", "replay") else ""
    return Score.of(TOPIC, name, *_times(rows, part), where, gmae_target=target, note=note, exposure=FIT)


def _times(rows: list[Row], part: str) -> tuple[list[float], list[float]]:
    return [getattr(r, part) for r in rows], [r.measured for r in rows]


def _checks(rows: list[Row]) -> list[Score]:
    linked = min((r.link_rate for r in rows), default=1.0)
    agreement = Agreement()
    for row in rows:
        agreement.add(row.agreement)
    odd = ", ".join(f"{n}×{op}→{'+'.join(f)}" for (op, f), n in agreement.others.most_common(6))
    board = [
        _asked("kernels linked to their operator", Figure("linked", linked, "more"), len(rows), LINK_TARGET,
               "worst run"),
        _asked("operator → kernels map", Figure("agree", agreement.share, "more"), agreement.checked,
               MAP_TARGET, f"others: {odd}"),
    ]  # fmt: skip
    for row in rows:
        if row.waiting is not None and not row.left_out and np.isfinite(row.waiting[0]):
            by_rank, by_call = row.waiting
            note = f"by rank {by_rank:.3f}, by call {by_call:.3f}"
            kind = "waiting in collectives"
            figure = Figure("correlation", by_rank, "more", is_share=False)
            board.append(_asked(f"{kind}, {row.name}", figure, 1, CORRELATION_TARGET, note, kind))
    left = [f"{r.name}: {r.left_out}" for r in rows if r.left_out]
    if left:
        board.append(Score(TOPIC, "left out", len(left), None, None, "; ".join(left), exposure=CHOSEN))
    return board


def _asked(name: str, figure: Figure, rows: int, target: float, note: str, kind: str = "") -> Score:
    """A figure that is to be high; nothing of it is fitted."""
    asked = f"≥ {target:.0%}" if figure.is_share else f"≥ {target:g}"
    return Score.reading(
        TOPIC, name, rows, figure, "", target=asked, met=figure.value >= target, note=note, exposure=CHOSEN,
        kind=kind,
    )  # fmt: skip
