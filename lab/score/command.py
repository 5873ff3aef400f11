"""``python -m lab score``: predictions against published measurements, topic by topic.

A topic is a module of ``lab.score``. Its ``scores`` returns `Score` lines, its ``figures`` what ``--json``
has by file. What ``scores`` takes are the topic's options: ``data`` (measured tables) and ``rows`` (only
held-out rows, or all). A topic with further options has a click ``command`` of its own.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from lab.score.results import TopicResult, load_result, load_results, save_result
from stepsight.commands.options import check_outputs, print_written, write_files
from stepsight.errors import InputError
from stepsight.records import nearest

if TYPE_CHECKING:
    from lab.score.frame import Figures
    from stepsight.score import Score

RESULTS = Path("validation")
"""Where ``all`` saves results, and ``--report`` finds them."""

TOPICS = {
    "quick": "Rows that ship with the package: a first check in under a minute.",
    "kernels": "Kernel models on shapes that took no part in the fit.",
    "collectives": "Curves on sizes, group sizes and platforms left out.",
    "embedding": "Lookups and hit rates.",
    "overheads": "Host overheads of one workload from the others.",
    "e2e": "Whole steps: DLRM, NLP and GPT training.",
    "llm": "Language-model training on 1 to 1,024 GPUs: time, memory, and what fits.",
    "power": "Steps by GPU generation, with its entries of the power mechanism and without.",
    "learn": "Error against the number of a source's own runs learned from.",
    "diagnose": "Synthetic faults: the true cause among the first two suspects.",
    "advise": "Single changes that published runs show before and after.",
    "tune": "tune's picks among configurations that were run: regret and crashes.",
    "traces": "Traced runs: replayed, anchored, by the models alone, and on another GPU.",
    "sharding": "The choice of a sharding plan.",
    "capture": "Captured scripts: published models and runs (needs torch and the libraries).",
}
BY_DEFAULT = (
    "quick", "kernels", "collectives", "embedding", "overheads", "e2e", "traces", "llm", "tune",
)  # fmt: skip
"""What ``all`` runs: everything that needs no training on this machine."""


def module_of(topic: str) -> str:
    """Where a topic's scores are made: a module, or the ``topic`` of a package. quick is in the product."""
    if topic == "quick":
        return "stepsight.validate.quick"
    found = find_spec(f"lab.score.{topic}")
    package = found is not None and found.submodule_search_locations is not None
    return f"lab.score.{topic}.topic" if package else f"lab.score.{topic}"


class Topics(click.Group):
    """Loads a topic's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*TOPICS, "all"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "all":
            return _everything
        if cmd_name not in TOPICS:
            return None
        module = importlib.import_module(module_of(cmd_name))
        own = getattr(module, "command", None)
        return own if isinstance(own, click.Command) else _plain_command(cmd_name, module)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Topics"):
            formatter.write_dl([*TOPICS.items(), ("all", "Every topic that needs no training here.")])


@click.group("score", cls=Topics, invoke_without_command=True)
@click.option(
    "--report", type=click.Path(path_type=Path), help="Write the scorecard page from saved results."
)
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True,
    help="Folder of the results that `score all` saved.",
)  # fmt: skip
@click.pass_context
def command(context: click.Context, report: Path | None, results: Path) -> None:
    """Score predictions against measurements."""
    if context.invoked_subcommand is not None:
        if report:
            raise click.UsageError("--report stands alone: first `score all`, then `score --report PAGE`")
        return
    if report is None:
        click.echo(context.get_help())
        return
    _report(report, results)


def _report(page: Path, folder: Path) -> None:
    from lab.score.scorecard import scorecard
    from stepsight import __version__

    check_outputs([page])
    found = load_results(folder, list(TOPICS))
    if not found:
        raise InputError(str(folder), "holds no results", "run `python -m lab score all` first")
    notes = page.absolute().parent / page.stem
    print_written(write_files([(page, scorecard(found, notes=notes, version=__version__))]))


def _plain_command(topic: str, module: ModuleType) -> click.Command:
    """A command with the options that have an effect on the topic's scores."""

    def run(as_json: bool, data: Path | None = None, each: bool = False, **rows: str) -> None:
        from lab.score.frame import show

        figures = _figures(module, data, each) if as_json else None
        show(_scores(module, data, **rows), figures, as_json=as_json)

    known = {
        "data": click.Option(["--data"], type=click.Path(path_type=Path), help="Folder of measured tables."),
        "rows": click.Option(
            ["--rows"], type=click.Choice(["heldout", "all"]), default="heldout", show_default=True,
            help="Only rows held out of the fit, or every row (of a folder that the fit never saw).",
        ),
    }  # fmt: skip
    taken: list[click.Parameter] = [option for name, option in known.items() if name in _options(module)]
    if "data" in _options(module):
        taken.append(
            click.Option(["--each"], is_flag=True, help="With --json: rows, where a topic has them.")
        )
    taken.append(click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."))
    return click.Command(topic, help=TOPICS[topic], params=taken, callback=run)


def _options(module: ModuleType) -> Sequence[str]:
    return list(signature(module.scores).parameters)


def _figures(module: ModuleType, data: Path | None, each: bool) -> Figures:
    """A topic's figures by file: what its ``figures(data)`` returns, where it has one. Those that take
    ``each`` list rows as well."""
    from lab.datasets.folder import data_folder

    made: Callable[..., Figures] | None = getattr(module, "figures", None)
    if made is None:
        return {}
    listed = {"each": True} if each and "each" in signature(made).parameters else {}
    return made(data_folder(data), **listed)


def _scores(module: ModuleType, data: Path | None, **rows: str) -> list[Score]:
    from lab.datasets.folder import data_folder

    return list(module.scores(data_folder(data), **rows) if "data" in _options(module) else module.scores())


@click.command("all", help="Every topic that needs no training on this machine.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True,
    help="Save each topic's result here as soon as it is done.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Leave out topics whose result is there already.")
@click.option("--only", "only", multiple=True, metavar="TOPIC", help="Only these topics.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _everything(data: Path | None, results: Path, resume: bool, only: tuple[str, ...], as_json: bool) -> None:
    from stepsight.validate.scoreboard import show

    for name in only:
        if name not in TOPICS:
            raise InputError(f"--only {name}", "is no topic", nearest(name, TOPICS))
    topics = _possible(only or BY_DEFAULT, data)
    found = []
    for number, topic in enumerate(topics, start=1):
        found.append(_one(topic, data, results, resume, f"{number} of {len(topics)}"))
    show([score for result in found for score in result.scores], as_json=as_json)


def _possible(topics: Sequence[str], data: Path | None) -> Sequence[str]:
    """The topics that can be scored here: without the measured tables only the rows that ship."""
    from lab.datasets.folder import data_folder

    try:
        data_folder(data)
    except InputError as error:
        if data is not None or "quick" not in topics:
            raise
        click.echo(f"{error}\nonly the rows that ship with the package are scored", err=True)
        return ("quick",)
    return topics


def _one(topic: str, data: Path | None, folder: Path, resume: bool, place: str) -> TopicResult:
    """A topic's result, read where it may be, else made and saved; progress goes to stderr."""
    saved = folder / f"{topic}.json"
    if resume and saved.is_file():
        click.echo(f"{place}  {topic}: taken from {saved}", err=True)
        return load_result(saved)
    click.echo(f"{place}  {topic} …", err=True)
    result = _scored(topic, data)
    save_result(folder, result)
    judged = [score.met for score in result.scores if score.met is not None]
    met = f", {sum(judged)} of {len(judged)} bars met" if judged else ""
    click.echo(f"{place}  {topic}: {len(result.scores)} scores in {result.seconds:.0f} s{met}", err=True)
    return result


def _scored(topic: str, data: Path | None) -> TopicResult:
    module = importlib.import_module(module_of(topic))
    given = f" --data {data}" if data and "data" in _options(module) else ""
    started = time.perf_counter()
    scores = _scores(module, data)
    seconds = time.perf_counter() - started
    return TopicResult(topic, f"python -m lab score {topic}{given}", seconds, tuple(scores))
