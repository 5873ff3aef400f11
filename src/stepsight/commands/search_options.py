"""Options that tune and sweep share, and the line that shows how far a search is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepsight.commands.workload_options import MODEL_HELP, SET_HELP

if TYPE_CHECKING:
    from stepsight.tune.trial import Row

Command = TypeVar("Command", bound=Callable[..., Any])
RESUME_HELP = "Keep every answer in this file (JSON lines), and skip trials that are already in it."
PRICE_HELP = "Price per GPU-hour, in any currency: adds cost per step and per million tokens."


def with_search_options(command: Command) -> Command:
    """Adds the options."""
    for option in (
        click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=SET_HELP),
        click.option("--price", type=click.FloatRange(0, min_open=True), help=PRICE_HELP),
        click.option("--workers", type=click.IntRange(1, 512), default=1, show_default=True,
                     help="Processes on this machine."),
        click.option("--ray", metavar="ADDRESS", help="Use a running Ray cluster (auto: the local one)."),
        click.option("--resume", type=click.Path(path_type=Path), metavar="FILE", help=RESUME_HELP),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--html", type=click.Path(path_type=Path), help="Write a page here."),
    ):  # fmt: skip
        command = option(command)
    return command


def with_model(command: Command) -> Command:
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
    """A line on the terminal that counts trials; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(word), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, transient=True) as shown:
        task = shown.add_task(word, total=None)

        def update(done: int, total: int, _: Row | None) -> None:
            shown.update(task, completed=done, total=total)

        yield update
