"""Options that tune and sweep share, and the line that shows how far a search is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from stepsight.tune.trial import Row

Command = TypeVar("Command", bound=Callable[..., Any])
SET_HELP = "Change a workload field, or a field of the platform (platform.link.gbps=100)."
RESUME_HELP = "Keep every answer in this file (JSON lines) and take up from there what it holds already."
PRICE_HELP = "Money per GPU-hour: adds cost per step and per million tokens."


def with_search_options(command: Command) -> Command:
    """Adds the options."""
    for option in (
        click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=SET_HELP),
        click.option("--price", type=click.FloatRange(0, min_open=True), help=PRICE_HELP),
        click.option("--workers", type=click.IntRange(1, 512), default=1, show_default=True,
                     help="Processes on this machine."),
        click.option("--ray", metavar="ADDRESS", help="Use a Ray cluster that runs (auto: the one here)."),
        click.option("--resume", type=click.Path(path_type=Path), metavar="FILE", help=RESUME_HELP),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--html", type=click.Path(path_type=Path), help="Write a page here."),
    ):  # fmt: skip
        command = option(command)
    return command


def with_model(command: Command) -> Command:
    """Adds the MODEL, which `predict` takes as ``--model`` where it is a name."""
    named = click.option("--model", "named", help="A well-known model by name: the same as MODEL.")
    return named(click.argument("model", required=False, type=click.Path(path_type=Path))(command))


def asked_model(model: Path | None, named: str | None) -> Path:
    """The one that was given."""
    if (model is None) == (named is None):
        raise click.UsageError("give one MODEL: a file, or a name such as llama3-8b")
    return model or Path(named or "")


def platform_parts(assignments: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Assignments to the workload, and those to the platform."""
    theirs = [a.removeprefix("platform.") for a in assignments if a.startswith("platform.")]
    return [a for a in assignments if not a.startswith("platform.")], theirs


@contextmanager
def counter(word: str, *, quiet: bool) -> Iterator[Callable[[int, int, Row | None], None] | None]:
    """A line on the terminal that counts trials; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(word), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, transient=True) as shown:
        task = shown.add_task(word, total=None)

        def told(done: int, total: int, row: Row | None) -> None:
            shown.update(task, completed=done, total=total)

        yield told
