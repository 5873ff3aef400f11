"""``stepsight shard``: where the embedding tables should live, and what the other plans cost."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepsight.commands import options
from stepsight.errors import InputError

if TYPE_CHECKING:
    from stepsight.sharding.search import Progress
    from stepsight.workload.dlrm.build import DlrmWorkload

TABLES_HELP = "Take the tables from a CSV or from the JSON of a TorchRec EmbeddingBagConfig list."
KINDS_HELP = (
    "Allow only these ways of sharding besides table_wise (repeat): column_wise, row_wise, table_row_wise, "
    "data_parallel; table_wise alone for whole tables [default: all that the stack supports]."
)

PLANS_HELP = "Price this many plans for each combination of kinds [default: 1000]; --budget ends earlier."
BUDGET_HELP = (
    "Stop the search after this time instead: 500ms, 5s, 2m (a bare number is seconds). The result then "
    "depends on the machine's speed."
)
HOST_MEMORY_HELP = (
    "Where tables do not fit on the GPUs, keep some in host memory, with or without a cache on the GPU: the "
    "plan names the tier of each."
)
HOST_GB_HELP = (
    "With --host-memory: GB of each node for tables; the rest goes to a drive, with a cache on the GPU."
)


@click.command("shard")
@click.argument("workload", type=click.Path(path_type=Path))
@options.platform()
@options.fields()
@click.option("--tables", "tables", help=TABLES_HELP)
@click.option("--indices", "days", multiple=True, type=click.Path(), help="An index file; one for each day.")
@click.option(
    "--objective",
    type=click.Choice(["mean", "worst"]),
    default="mean",
    help="With several days of indices: the mean step, or the worst day's.",
)
@click.option("--kind", "kinds", multiple=True, help=KINDS_HELP)
@options.path("--also", "A plan file to compare with, ours or TorchRec's.", multiple=True)
@click.option("--plans", type=click.IntRange(min=1), help=PLANS_HELP)
@click.option("--budget", default="", metavar="TIME", help=BUDGET_HELP)
@click.option("--seed", default=0, help="The same seed gives the same search.")
@click.option("--host-memory", is_flag=True, help=HOST_MEMORY_HELP)
@click.option("--host-gb", type=click.FloatRange(min=0, min_open=True), help=HOST_GB_HELP)
@options.json_flag
@options.path("--out", "Write the plan here.")
@options.path("--torchrec", "Write a TorchRec sharding plan here.")
@click.option("--module", help="With --torchrec: the path of the model's embedding collection.")
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="With --torchrec: where shards are placed."
)
@options.path("--html", "Write a page with the choice here.")
def command(
    workload: Path, platform: str, assignments: tuple[str, ...], tables: str | None, days: tuple[str, ...],
    objective: str, kinds: tuple[str, ...], also: tuple[Path, ...], plans: int | None, budget: str,
    seed: int, host_memory: bool, host_gb: float | None, as_json: bool,
    out: Path | None, torchrec: Path | None, module: str | None, device: str | None, html: Path | None,
) -> None:  # fmt: skip
    """Choose where the embedding tables of WORKLOAD (a TOML file) live on a platform."""
    options.check_outputs((out, torchrec, html))
    if host_gb is not None and not host_memory:
        raise click.UsageError("--host-gb has no effect without --host-memory")
    if torchrec is None and (module or device):
        raise click.UsageError("--module and --device are of the plan that --torchrec writes")
    from stepsight.documents import to_json
    from stepsight.platform.load import load_platform
    from stepsight.records import seconds
    from stepsight.report.sharding import sharding_page, show
    from stepsight.sharding.choice import choose, days_of
    from stepsight.sharding.rules import USUAL_KINDS
    from stepsight.tables.torchrec_plan import MODULE, read_plan, torchrec_document

    on_workload, on_platform = options.split_assignments(assignments)
    here = load_platform(platform, on_platform)
    dlrm = _workload(workload, on_workload, tables, here.spec.ranks)
    choice = choose(
        dlrm, here, objective=objective, plans=plans, seed=seed,
        budget_s=seconds(budget, "--budget") if budget else None, kinds=kinds or USUAL_KINDS,
        days=days_of(dlrm.tables, days),
        also=[read_plan(path, dlrm.tables, dlrm.ranks).named(path.stem) for path in also],
        progress=None if as_json or not sys.stderr.isatty() else _progress,
        host_memory=host_memory, host_gb=host_gb or math.inf,
    )  # fmt: skip
    if sys.stderr.isatty():
        click.echo("\r" + " " * 60 + "\r", nl=False, err=True)
    plan, usual_device = choice.winner.plan, "cpu" if here.spec.host.synchronous else "cuda"
    theirs = torchrec_document(
        plan, ranks_per_node=here.spec.gpus_per_node, module=module or MODULE,
        device=device or usual_device,
    )  # fmt: skip
    options.deliver(
        choice.to_dict, lambda console: show(choice, console), (out, plan.to_json),
        (torchrec, lambda: to_json(theirs)), (html, lambda: sharding_page(choice)), as_json=as_json,
    )  # fmt: skip


def _workload(path: Path, assignments: list[str], tables: str | None, gpus: int) -> DlrmWorkload:
    from stepsight.capturing.step import is_step_file
    from stepsight.workload.dlrm.build import DlrmWorkload
    from stepsight.workload.files import load_workload, resolve

    if is_step_file(path):
        raise InputError(
            str(path), "is a captured step, whose tables cannot be moved", "describe the DLRM in a TOML file"
        )
    loaded = resolve(load_workload(path, assignments, tables=tables), gpus)
    if not isinstance(loaded, DlrmWorkload):
        raise InputError(str(path), "is not a DLRM", "only workloads with embedding tables have plans")
    return loaded


def _progress(state: Progress) -> None:
    gap = state.step_us / state.bound_us - 1
    done = f"{state.seconds:5.1f} s  {state.priced:>8,} plans  {state.step_us / 1e3:.3f} ms"
    click.echo(f"\r{done}  gap {100 * gap:.1f} % ", nl=False, err=True)
