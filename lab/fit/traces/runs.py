"""The runs under a folder of traces: which files belong together, and what each trains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepsight.errors import StepsightError
from stepsight.trace.execution import (
    ExecutionTrace,
    belongs,
    has_shapes,
    looks_like_chakra,
    looks_like_et,
    read_execution_trace,
)
from stepsight.trace.files import SUFFIXES, TraceFile, trace_files
from stepsight.trace.job import rank_program, typical_step
from stepsight.trace.kineto import KinetoTrace, looks_like_kineto, read_kineto
from stepsight.trace.run import Header, TraceRun, measured_step_us, run_of, runs_of

_SLEEP_SHARE = 0.5
"""A single host gap longer than this share of the step is an artificial sleep."""
_MARKED = ("ProfilerStep", "iteration marker")
"""Repetitions of kernels may be layers."""
_RUN_NUMBER = re.compile(r"run_\d+")
DLRM, TRANSFORMER, CNN, OTHER, SINGLE = "dlrm", "transformer", "cnn", "other", "single step"


@dataclass(frozen=True)
class ScoredRun:
    """One run with what it trains and, where it cannot be scored, why not."""

    name: str
    run: TraceRun
    kind: str
    left_out: str = ""
    host: str = ""
    """The collection it came with: traces of one collection share a host."""
    workload: str = ""

    @property
    def measured_us(self) -> float:
        return measured_step_us(self.run)


def scored_runs(folder: Path, *, single: bool = False) -> Iterator[ScoredRun]:
    """Every training run under a folder, one at a time; copies of a run come once.

    ``single``: also traces without marked steps that recur (one step, inference), as of kind `SINGLE`.
    """
    for headers in _without_copies(runs_of(Header.of(trace) for trace in _traces([folder]))):
        wanted = {h.path for h in headers}
        files = sorted({Path(h.path.split("::")[0]) for h in headers})
        traces = [t for t in _traces(files) if t.path in wanted]
        run = _with_shapes(sorted(traces, key=lambda t: t.rank or 0), files)
        why = _not_scored(run)
        if why is not None and not (single and _has_work(run)):
            continue
        host, workload = _collection(folder, headers[0].path)
        name, kind = _name(folder, headers[0].path), kind_of(run) if why is None else SINGLE
        yield ScoredRun(name, run, kind, _left_out(run), host, workload)


def _with_shapes(traces: list[KinetoTrace], files: list[Path]) -> TraceRun:
    """The run, with the shapes of execution traces in its folder where its own traces hold none."""
    run = run_of(traces)
    if has_shapes(run.ranks[0].linked):
        return run
    siblings = sorted({f for file in files for f in file.parent.iterdir() if f.name.endswith(SUFFIXES)})
    found = [
        et
        for file in trace_files(siblings)
        if (et := _execution_trace(file)) and belongs(run.ranks[0].linked, et)
    ]
    return run_of(traces, (), found) if found else run


def _execution_trace(file: TraceFile) -> ExecutionTrace | None:
    if looks_like_chakra(file) or looks_like_kineto(file.content) or not looks_like_et(file.content):
        return None
    try:
        return read_execution_trace(file)
    except StepsightError:
        return None


def _without_copies(runs: list[list[Header]]) -> Iterator[list[Header]]:
    """Runs that begin at the same moment with the same ranks are one run stored twice."""
    seen: set[tuple[float, int, tuple[int | None, ...]]] = set()
    for run in runs:
        key = run[0].start_us, run[0].world_size, tuple(h.rank for h in run)
        if key not in seen:
            seen.add(key)
            yield run


def _traces(paths: list[Path]) -> Iterator[KinetoTrace]:
    for file in trace_files(paths):
        if looks_like_kineto(file.content):
            try:
                yield read_kineto(file)
            except StepsightError:
                continue


def _collection(folder: Path, path: str) -> tuple[str, str]:
    file = Path(path.split("::")[0])
    inside = file.relative_to(folder).parts if file.is_relative_to(folder) else file.parts
    # Runs of one program that differ by a number only are one workload.
    return inside[0], _RUN_NUMBER.sub("", "/".join(inside[:-1]))


def _name(folder: Path, path: str) -> str:
    file = Path(path.split("::")[0])
    shown = file.relative_to(folder) if file.is_relative_to(folder) else file
    stem = shown.name.split(".")[0][:24]
    return f"{shown.parts[0]}/{stem}" if len(shown.parts) > 1 else stem


def _not_scored(run: TraceRun) -> str | None:
    """Why a trace is no training run: None where it is one."""
    if run.world_size > 1 and len(run.ranks) == run.world_size:
        return None
    if run.ranks[0].steps[0].how not in _MARKED or run.steps < 2:
        return "fewer than two marked steps"
    if not np.isfinite(run.ranks[0].periods_us).any():
        return "no kernel recurs once a step"
    return None


def _has_work(run: TraceRun) -> bool:
    """Whether the trace shows operators that launch kernels."""
    return all(r.linked.launches and r.linked.ops and r.steps for r in run.ranks)


def _left_out(run: TraceRun) -> str:
    """An artificial sleep or allocation storms in every step."""
    if all(r.is_storm(s) for r in run.ranks for s in r.steps):
        return "allocation storms in every step"
    measured = measured_step_us(run)
    step = typical_step(run)
    for rank in run.ranks:
        program = rank_program(run, rank, step)
        longest = max((t.op.overhead_us.t1 for t in program.ops if t.op.overhead_us), default=0.0)
        if longest > _SLEEP_SHARE * measured:
            return f"rank {rank.rank} sleeps {longest / 1e3:.0f} ms"
    return ""


def kind_of(run: TraceRun) -> str:
    """What is trained, by the operators that show."""
    linked = run.ranks[0].linked
    names = " ".join({e.name for e in linked.ops} | {x.gpu[0].name for x in linked.launches})
    if re.search(r"split_embedding|embedding_bag|EmbeddingBag|fbgemm", names):
        return DLRM
    if re.search(r"conv2d|convolution|cudnn.*conv|MIOpen", names, re.IGNORECASE):
        return CNN
    if re.search(r"flash_?attn|attention|layer_?norm|rms_?norm|aten::bmm", names, re.IGNORECASE):
        return TRANSFORMER
    return OTHER
