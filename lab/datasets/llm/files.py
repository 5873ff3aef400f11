"""Every published file of language-model steps, and how its rows are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.datasets.folder import part, read_csv
from lab.datasets.llm import layouts, nvidia, others, published
from lab.datasets.llm.case import Case, LacksError, Row
from stepsight.errors import InputError
from stepsight.workload.llm.layout import AXES


@dataclass(frozen=True, slots=True)
class LlmFile:
    """A file by its name without ``.csv``: how a row is read; what it is called and the part of the file that
    it belongs to, by its columns. ``after`` looks at all rows together."""

    name: str
    case: Callable[[Row], Case]
    label: str
    group: str = "{model}"
    after: Callable[[Sequence[Case]], list[Case]] = list


_GPT = (
    "h{hidden size} l{# layers} s{sequence length} b{global batch}/{micro batch} "
    "t{tensor parallelism} d{data parallelism} p{pipeline parallelism}"
)
_GPT_SIZE = "h{hidden size} l{# layers}"
FILES = (
    LlmFile(layouts.GPT_ONE_NODE, layouts.gpt, _GPT, _GPT_SIZE),
    LlmFile(layouts.GPT_NODES, layouts.gpt, _GPT, _GPT_SIZE),
    LlmFile(
        layouts.H100_SWEEP, layouts.h100_run, "{model} n{nodes} dp{dp} tp{tp} pp{pp} z{zero} mb{micro_batch}",
        "{model} on {nodes} nodes", layouts.mark_slow,
    ),
    LlmFile(
        layouts.A100_LAYOUTS, layouts.a100_layout,
        "{model} s{seq} g{gpus} mb{micro_batch} t{tp} p{pp} {kernel}", "{sheet}",
    ),
    LlmFile(
        published.OTHER_TRAINING, published.case, "{table}: {model} {gpus}x{gpu} {parallelism}", "{file}"
    ),
    LlmFile(nvidia.DGXC, nvidia.dgxc, "{release} {model} {precision} on {gpus} {gpu}"),
    LlmFile(nvidia.MLPERF, nvidia.mlperf, "{round} {submitter} {system} {benchmark}", "{benchmark}"),
    LlmFile(others.XTUNER, others.xtuner, "{model} s{seq} sp{sequence_parallel} on {gpus}"),
    LlmFile(others.PRIMUS, others.primus, "{model} {precision} {schedule} vp{vp} on {gpus} {gpu}"),
    LlmFile(nvidia.ABLATIONS, nvidia.ablation, "{model} tp{tp} pp{pp} {recompute} on {gpus} {gpu}"),
    LlmFile(others.LITGPT, others.litgpt, "{model} {method} mb{micro_batch} on {gpus}", "{method}"),
)  # fmt: skip


def file_of(name: str) -> LlmFile:
    """A file by its name."""
    return next(file for file in FILES if file.name == name)


def cases(file: LlmFile, data: Path) -> list[Case]:
    """All rows of a file; a row that its reader cannot follow says so instead of ending the run."""
    rows = read_csv(part(data, "e2e") / f"{file.name}.csv")
    return file.after([replace(_read(file, row), file=file.name) for row in rows])


def all_cases(data: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[LlmFile, list[Case]]]:
    """The files that are there, by parts of their names."""
    for file in FILES:
        if wanted and not any(text.removesuffix(".csv") in file.name for text in wanted):
            continue
        if found := cases(file, data):
            yield file, found


def _left_out(case: Case, row: Row) -> str:
    """A note where a row's layout does not use all of its GPUs."""
    parallel = (case.stated or {}).get("parallel", {})
    if "data" not in parallel or not (row.get("gpus") or "").replace(".", "").isdigit():
        return ""
    used = math.prod(parallel.get(axis, 1) for axis in AXES)
    return f" (its layout uses {used} of them)" if used != int(float(row["gpus"])) else ""


def _read(file: LlmFile, row: Row) -> Case:
    shown = {**row, "table": (row.get("file") or "").removesuffix(".csv")}
    try:
        name, group = file.label.format_map(shown), file.group.format_map(shown)
        try:
            case = file.case(row)
            name += _left_out(case, row)
            return replace(case, name=name, group=f"{group}, layout not stated" if case.layouts else group)
        except LacksError as lacks:
            return Case(None, lacks=str(lacks), name=name, group=group)
    except (KeyError, ValueError, IndexError, ZeroDivisionError, InputError) as error:
        name = " ".join(value for value in list(row.values())[:4] if value)
        return Case(None, lacks=f"the row cannot be read ({type(error).__name__}: {error})", name=name)
