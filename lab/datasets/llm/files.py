"""Every published file of language-model steps, and how its rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab.datasets.folder import part, read_csv
from lab.datasets.llm import layouts, nvidia, others, published
from lab.datasets.llm.case import Case, Row
from stepsight.errors import InputError


@dataclass(frozen=True, slots=True)
class LlmFile:
    """A file by its name without ``.csv``; ``after`` looks at all its rows together."""

    name: str
    case: Callable[[Row], Case]
    after: Callable[[Sequence[Case]], list[Case]] = list


FILES = (
    LlmFile(layouts.GPT_ONE_NODE, layouts.gpt),
    LlmFile(layouts.GPT_NODES, layouts.gpt),
    LlmFile(layouts.H100_SWEEP, layouts.h100_run, layouts.mark_slow),
    LlmFile(layouts.A100_LAYOUTS, layouts.a100_layout),
    LlmFile(published.OTHER_TRAINING, published.case),
    LlmFile(nvidia.DGXC, nvidia.dgxc),
    LlmFile(nvidia.MLPERF, nvidia.mlperf),
    LlmFile(others.XTUNER, others.xtuner),
    LlmFile(others.PRIMUS, others.primus),
    LlmFile(nvidia.ABLATIONS, nvidia.ablation),
    LlmFile(others.LITGPT, others.litgpt),
)


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


def _read(file: LlmFile, row: Row) -> Case:
    try:
        return file.case(row)
    except (KeyError, ValueError, IndexError, ZeroDivisionError, InputError) as error:
        name = " ".join(value for value in list(row.values())[:4] if value)
        return Case(name, None, lacks=f"the row cannot be read ({type(error).__name__}: {error})")
