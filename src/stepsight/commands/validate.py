"""``stepsight validate``: predictions against measurements, topic by topic.

A topic is a module of ``stepsight.validate``. It offers ``scores(data, rows)``, which
returns `Score` lines, and, where it takes options of its own, a click ``command``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import click

TOPICS = {
    "kernels": "Kernel models on shapes that took no part in the fit.",
    "collectives": "Curves on sizes, group sizes and platforms left out.",
    "embedding": "Lookups and hit rates.",
    "overheads": "Host overheads of one workload from the others.",
    "e2e": "Whole steps: DLRM, NLP and GPT training, and traces.",
    "llm": "Language-model training on 1 to 1,024 GPUs: time, memory, and what fits.",
    "sharding": "The choice of a sharding plan.",
    "live": "Random models, predicted and then really trained here.",
}
BY_DEFAULT = ("kernels", "collectives", "embedding", "overheads", "e2e", "sharding")
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


@click.group("validate", cls=Topics)
def command() -> None:
    """Score predictions against measurements."""


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

        show(module.scores(data_folder(data), rows), as_json=as_json)

    return run  # fmt: skip


@click.command("all", help="Every topic that needs no training on this machine.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _everything(data: Path | None, as_json: bool) -> None:
    from stepsight.measured_data import data_folder
    from stepsight.validate.scoreboard import show

    folder = data_folder(data)
    scores = []
    for topic in BY_DEFAULT:
        click.echo(f"scoring {topic} …", err=True)
        scores += importlib.import_module(f"stepsight.validate.{topic}.topic").scores(folder, "heldout")
    show(scores, as_json=as_json)
