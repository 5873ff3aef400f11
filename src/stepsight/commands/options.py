"""Options and outputs that several commands share."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from stepsight.documents import write_whole
from stepsight.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from stepsight.report.pieces import Report
    from stepsight.tuning.trial import Row


def check_outputs(files: Iterable[Path | None], folders: Iterable[Path | None] = ()) -> None:
    """Refuse before anything is computed what could not be written after."""
    for path in folders:
        if path and path.exists() and not path.is_dir():
            raise InputError(str(path), "is a file", "name a folder")
        if path and not path.is_dir() and not path.absolute().parent.is_dir():
            raise InputError(str(path), "its folder does not exist", "make the folder first")
    for path in files:
        if path and not path.absolute().parent.is_dir():
            raise InputError(str(path), "its folder does not exist", "make the folder first")
        if path and path.is_dir():
            raise InputError(str(path), "is a folder", "name a file in it")
        if path and not os.access(path.absolute().parent, os.W_OK):
            raise InputError(str(path), "its folder cannot be written to", "choose another path")


def write_files(made: Iterable[tuple[Path | None, str | bytes]]) -> list[Path]:
    """Write each file whole; what was written, in order."""
    written = []
    for path, content in made:
        if path:
            write_whole(path, content)
            written.append(path)
    return written


def print_written(paths: Iterable[Path]) -> None:
    """Name the files that a command wrote."""
    for path in paths:
        click.echo(f"wrote {path}")


PLATFORM_PREFIX = "platform."
MODEL_HELP = "A well-known model by name, such as llama3-8b: the same as naming it in place of a file."
SET_HELP = "Change a field of the workload, or of the platform (platform.link.gbps=100: GB/s per GPU)."
RECIPE_HELP = "The training stack whose defaults apply: a name of `stepsight recipes`, or a file of your own."
MODELS_ONLY_HELP = "With --trace: use model times for every kernel of known size, ignoring measured ones."
PLATFORM_SET_HELP = "Change a field of the platform (platform.link.gbps=100: GB/s per GPU)."


def split_assignments(assignments: Sequence[str], recipe: str | None = None) -> tuple[list[str], list[str]]:
    """Assignments to the workload, a recipe first, and those to the platform without their prefix."""
    assignments = [f"training.recipe={recipe}", *assignments] if recipe else assignments
    on_platform = [a.removeprefix(PLATFORM_PREFIX) for a in assignments if a.startswith(PLATFORM_PREFIX)]
    return [a for a in assignments if not a.startswith(PLATFORM_PREFIX)], on_platform


def platform_assignments(assignments: Sequence[str], source: str, fix: str) -> list[str]:
    """Assignments to the platform, where the workload has no fields: a trace, a script, a captured step."""
    on_workload, on_platform = split_assignments(assignments)
    if on_workload:
        key = on_workload[0].partition("=")[0]
        raise InputError(
            f"--set {on_workload[0]}", f"{source} has no fields",
            f"{fix}; for a field of the platform write {PLATFORM_PREFIX}{key}",
        )  # fmt: skip
    return on_platform


def captured_assignments(assignments: Sequence[str]) -> list[str]:
    """Assignments to the platform of a captured step."""
    return platform_assignments(assignments, "a captured step", "capture it again")


def value_text(value: object) -> str:
    """A setting's value as TOML has it; a word stands without its quotes."""
    if isinstance(value, bool | list | tuple):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


COUNT_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def count(text: str) -> float:
    """A positive number, plain or with a unit of 1000s: ``1.5e9``, ``300B``, ``15T``."""
    plain = str(text).strip().replace("_", "").replace(",", "")
    unit = plain[-1:].upper() if plain[-1:].isalpha() else ""
    try:
        number = float(plain[: len(plain) - len(unit)]) * COUNT_UNITS[unit]
    except (KeyError, ValueError):
        raise click.BadParameter(f"{text!r} is not a number; write 15e12, 15T, 300B, 500M or 10K") from None
    if not 0 < number < math.inf:
        raise click.BadParameter(f"{text!r} is not a number above zero")
    return number


Command = TypeVar("Command", bound=Callable[..., Any])
RESUME_HELP = "Keep every answer in this file (JSON lines), and skip trials that are already in it."
PRICE_HELP = "Price per GPU-hour, in any currency: adds cost per step and per million tokens."
PREFIX_HELP = "Prefix of each rank's command; {rank} is replaced: 'ip netns exec stepsight{rank}'."
PLATFORM_HELP = "A name such as 8xH100-SXM (8 GPUs) or 4x8xH100-SXM-400G (4 nodes), or a path."


def complete_platform(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``8xH1`` → ``8xH100-SXM-80G`` …; paths complete as files."""
    from stepsight.hardware.gpus import canonical, gpu_catalogue

    counted = re.fullmatch(r"((?:\d+x)?\d+x)(.*)", incomplete)
    prefix, typed = (counted[1], counted[2]) if counted else ("8x", incomplete)
    names = [name for name in gpu_catalogue() if canonical(name).startswith(canonical(typed))]
    found = [CompletionItem(prefix + name) for name in names]
    return found or [CompletionItem(incomplete, type="file")]


def path(name: str, help: str, *more: str, **settings: Any) -> Callable[[Command], Command]:
    """An option whose value is a path."""
    return click.option(name, *more, type=click.Path(path_type=Path), help=help, **settings)


def platform(*, required: bool = True, help: str = PLATFORM_HELP) -> Callable[[Command], Command]:
    return click.option(
        "--platform", "-p", required=required, help=help, shell_complete=complete_platform
    )  # fmt: skip


def fields(help: str = SET_HELP, name: str = "assignments") -> Callable[[Command], Command]:
    return click.option("--set", name, multiple=True, metavar="KEY=VALUE", help=help)


port = click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Rendezvous port of the ranks (default: any)."
)  # fmt: skip
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
html = path("--html", "Write a page here.")
recipe = click.option("--recipe", metavar="NAME", help=RECIPE_HELP)
timeline = path("--timeline", "Write a Perfetto/Chrome timeline here.")


def deliver(
    document: Callable[[], object], show: Callable[[Console], None],
    *files: tuple[Path | None, Callable[[], str | bytes]], as_json: bool,
) -> None:  # fmt: skip
    """Write the files that were asked for, then print the answer, as JSON or as tables.

    In this order, because who reads what is printed may stop early (``| head``).
    """
    from stepsight.documents import to_json
    from stepsight.terminal import terminal

    written = write_files([(path, make()) for path, make in files if path])
    if as_json:
        click.echo(to_json(document()))
    else:
        show(terminal())
        print_written(written)


def deliver_report(
    document: Callable[[], object], report: Report, html: Path | None, *, as_json: bool
) -> None:
    """Print an answer that is a report, and write its page if one was asked for."""
    deliver(document, report.show, (html, report.page), as_json=as_json)


def search(command: Command) -> Command:
    """Adds the options."""
    for option in (
        fields(),
        click.option("--price", type=click.FloatRange(0, min_open=True), help=PRICE_HELP),
        click.option("--workers", type=click.IntRange(1, 512), default=1, show_default=True,
                     help="Processes on this machine."),
        click.option("--ray", metavar="ADDRESS", help="Use a running Ray cluster (auto: the local one)."),
        path("--resume", RESUME_HELP, metavar="FILE"),
        json_flag,
        html,
    ):  # fmt: skip
        command = option(command)
    return command


def network(command: Command) -> Command:
    """Adds how ranks on this machine reach each other, as the arguments of `Ranks`."""
    for option in (
        click.option("--rank-prefix", "prefix", default="", help=PREFIX_HELP),
        click.option("--interface", default="", help="Network interface of gloo or NCCL."),
        click.option("--address", default="127.0.0.1", show_default=True, help="Where rank 0 listens."),
    ):
        command = option(command)
    return command


def rank_prefixes(prefix: str, ranks: int) -> list[list[str]]:
    """The words before each rank's command."""
    try:
        return [shlex.split(prefix.format(rank=rank)) for rank in range(ranks)] if prefix else []
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        fix = "write {rank} for the rank's number, other braces twice, and close quotes"
        raise InputError(f"--rank-prefix {prefix}", f"cannot be read ({error})", fix) from None


def model(command: Command) -> Command:
    """Adds the MODEL, and ``--model`` for a name, as in `predict`."""
    named = click.option("--model", "named", help=MODEL_HELP)
    return named(click.argument("model", required=False, type=click.Path(path_type=Path))(command))


def model_argument(model: Path | None, named: str | None) -> Path:
    """The one that was given."""
    if (model is None) == (named is None):
        raise click.UsageError("give exactly one of MODEL (a file, or a name such as llama3-8b) and --model")
    return model or Path(named or "")


@contextmanager
def progress_bar(word: str, *, quiet: bool) -> Iterator[Callable[[int, int, Row | None], None] | None]:
    """A bar on the terminal that counts trials; elsewhere a line on stderr now and then."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines(word)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(word), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, transient=True) as shown:
        task = shown.add_task(word, total=None)

        def update(done: int, total: int, _: Row | None) -> None:
            shown.update(task, completed=done, total=total)

        yield update


FIRST_LINE_S, NEXT_LINE_S = 2.0, 10.0
"""Seconds until the first line, and between lines."""


def _lines(word: str) -> Callable[[int, int, Row | None], None]:
    due = time.monotonic() + FIRST_LINE_S

    def update(done: int, total: int, _: Row | None) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + NEXT_LINE_S
            click.echo(f"{word}: {done:,} of {total:,} configurations", err=True)

    return update
