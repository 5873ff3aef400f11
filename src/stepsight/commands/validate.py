"""``stepsight validate``: predictions against measurements, topic by topic.

A topic is a module of ``stepsight.validate``. It offers ``scores(data, rows)``, which
returns `Score` lines, and, where it takes options of its own, a click ``command``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from stepsight.commands.outputs import check_outputs, say_written, write_files
from stepsight.errors import InputError, StepsightError
from stepsight.records import nearest

if TYPE_CHECKING:
    from stepsight.score import Score
    from stepsight.validate.results import TopicResult

RESULTS = Path("validation")
"""Where ``all`` saves results, and ``--report`` finds them."""

TOPICS = {
    "quick": "Rows that ship with the package: a first check in under a minute.",
    "kernels": "Kernel models on shapes that took no part in the fit.",
    "collectives": "Curves on sizes, group sizes and platforms left out.",
    "embedding": "Lookups and hit rates.",
    "overheads": "Host overheads of one workload from the others.",
    "e2e": "Whole steps: DLRM, NLP and GPT training, and traces.",
    "llm": "Language-model training on 1 to 1,024 GPUs: time, memory, and what fits.",
    "tune": "Picks among configurations that were really run: regret and crashes.",
    "traces": "Traced runs: replayed, anchored, by the models alone, and on another GPU.",
    "sharding": "The choice of a sharding plan.",
    "capture": "Captured scripts: models of libraries, traced runs, published runs (needs torch and models).",
    "live": "Random models, predicted and then really trained here.",
}
BY_DEFAULT = (
    "quick",
    "kernels",
    "collectives",
    "embedding",
    "overheads",
    "e2e",
    "traces",
    "llm",
    "tune",
    "sharding",
)
"""What ``all`` runs: everything that needs no training on this machine."""


class Topics(click.Group):
    """Loads a topic's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*TOPICS, "all"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "all":
            return _everything
        if cmd_name not in TOPICS:
            return None
        module = importlib.import_module(f"stepsight.validate.{cmd_name}.topic")
        own = getattr(module, "command", None)
        return own if isinstance(own, click.Command) else _plain_command(cmd_name, module)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Topics"):
            formatter.write_dl([*TOPICS.items(), ("all", "Every topic that needs no training here.")])


@click.group("validate", cls=Topics, invoke_without_command=True)
@click.option(
    "--report", type=click.Path(path_type=Path), help="Write the scorecard page from saved results."
)
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True,
    help="Folder of the results that `validate all` saved.",
)  # fmt: skip
@click.pass_context
def command(context: click.Context, report: Path | None, results: Path) -> None:
    """Score predictions against measurements."""
    if context.invoked_subcommand is not None:
        if report:
            raise click.UsageError(
                "--report stands alone: first `validate all`, then `validate --report PAGE`"
            )
        return
    if report is None:
        click.echo(context.get_help())
        return
    _report(report, results)


def _report(page: Path, folder: Path) -> None:
    from stepsight.report.page.pieces import package_version
    from stepsight.validate.results import load_results
    from stepsight.validate.scorecard import scorecard

    check_outputs([page])
    found = load_results(folder, list(TOPICS))
    if not found:
        raise InputError(str(folder), "holds no results", "run `stepsight validate all` first")
    notes = page.absolute().parent / page.stem
    say_written(write_files([(page, scorecard(found, notes=notes, version=package_version()))]))


def _plain_command(topic: str, module: ModuleType) -> click.Command:
    @click.command(topic, help=TOPICS[topic])
    @click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
    @click.option(
        "--rows",
        type=click.Choice(["heldout", "all"]),
        default="heldout",
        show_default=True,
        help="Only rows left out of the fit, or every row (of a folder that the fit never saw).",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    def run(data: Path | None, rows: str, as_json: bool) -> None:
        from stepsight.measured_data import data_folder
        from stepsight.validate.scoreboard import show

        folder = None if topic == "quick" and data is None else data_folder(data)
        show(module.scores(folder, rows), as_json=as_json)

    return run  # fmt: skip


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
    from stepsight.measured_data import data_folder

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
    from stepsight.validate.results import load_result, save_result

    saved = folder / f"{topic}.json"
    if resume and saved.is_file():
        click.echo(f"{place}  {topic}: taken from {saved}", err=True)
        return load_result(saved)
    click.echo(f"{place}  {topic} …", err=True)
    result = _scored(topic, data)
    save_result(folder, result)
    bars = sum(score.met is not None for score in result.scores)
    met = f", {bars - result.missed} of {bars} bars met" if bars else ""
    click.echo(f"{place}  {topic}: {len(result.scores)} scores in {result.seconds:.0f} s{met}", err=True)
    return result


def _scored(topic: str, data: Path | None) -> TopicResult:
    import time

    from stepsight.validate.results import TopicResult

    module = importlib.import_module(f"stepsight.validate.{topic}.topic")
    given = f" --data {data}" if data else ""
    started = time.perf_counter()
    scores: list[Score] = []
    other: Any = None
    if hasattr(module, "scores"):
        from stepsight.measured_data import data_folder

        scores = list(module.scores(None if topic == "quick" else data_folder(data), "heldout"))
    if not hasattr(module, "scores") or hasattr(module, "summary"):
        other = _asked(topic, data)
    seconds = time.perf_counter() - started
    return TopicResult(topic, f"stepsight validate {topic}{given}", seconds, tuple(scores), other)


def _asked(topic: str, data: Path | None) -> Any:
    """The JSON of a topic's own command."""
    import json
    import subprocess
    import sys

    line = [
        sys.executable,
        "-m",
        "stepsight",
        "validate",
        topic,
        "--json",
        *(["--data", str(data)] if data else []),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise StepsightError(f"validate {topic} gave no JSON: {done.stderr.strip()[-500:]}") from None
