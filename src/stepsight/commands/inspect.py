"""``stepsight inspect``: look into traces, or (`inspect indices`) into files of embedding indices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepsight.commands import options
from stepsight.errors import InputError
from stepsight.terminal import counted

if TYPE_CHECKING:
    from stepsight.tables.indices.index_files import TableSummary


class TracesOrIndices(click.Command):
    """``inspect indices FILE`` goes to the command for index files; anything else is traces."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] == "indices":
            ctx.meta["stepsight.indices"] = args[1:]
            return super().parse_args(ctx, ["."])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        rest = ctx.meta.get("stepsight.indices")
        if rest is None:
            return super().invoke(ctx)
        with indices.make_context("indices", list(rest), parent=ctx) as sub:
            return indices.invoke(sub)


@click.command("inspect", cls=TracesOrIndices)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.json_flag
@options.path("--html", "Write a page with charts here.")
def command(traces: tuple[Path, ...], as_json: bool, html: Path | None) -> None:
    """Look into TRACES: profiler files or folders of one run (`inspect indices FILE` for index files).

    Shows step times on the GPU's own clock, busy and idle time and exposed communication per
    rank, stragglers, top operators and kernels, host overheads, the critical path, and which
    models would time the kernels.
    """
    from stepsight.prediction.traced.inspection import inspect_run
    from stepsight.report.inspection import inspection_page, show
    from stepsight.trace.run import load_trace

    options.check_outputs([html])
    seen = inspect_run(load_trace(traces))
    options.deliver(
        lambda: seen, lambda console: show(seen, console),
        (html, lambda: inspection_page(seen)), as_json=as_json,
    )  # fmt: skip


_BAR = 40
_TABLES_SHOWN = 30


@click.command("indices")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--table", "wanted", type=int, help="Only this table (numbered from 0).")
@click.option("--batch", type=int, help="Statistics of the first BATCH bags instead of the whole file.")
@options.json_flag
def indices(file: Path, wanted: int | None, batch: int | None, as_json: bool) -> None:
    """Which rows an index file asks for: pooling, distinct rows, reuse, and hit rate by cache size.

    FILE is .npz or .pt with indices, offsets and lengths (dlrm_datasets), .npy, or Criteo-style text.
    """
    summaries = _summaries(file, wanted, batch)
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json({"file": str(file), "tables": summaries}))
        return
    _print_table(file, summaries)
    _print_picture(max(summaries, key=lambda s: s.lookups))


def _summaries(file: Path, wanted: int | None, batch: int | None) -> list[TableSummary]:
    from stepsight.tables.indices.index_files import open_index_file, summarise

    opened = open_index_file(str(file))
    numbers = range(len(opened.tables)) if wanted is None else [wanted]
    streams = [(number, opened.table(number)) for number in numbers]
    if batch is not None:
        streams = [(number, stream.first_bags(batch)) for number, stream in streams]
    full = [summarise(number, stream) for number, stream in streams if stream.lookups]
    if not full:
        raise InputError(str(file), "has no lookups", "check the file")
    return full


def _print_table(file: Path, summaries: Sequence[TableSummary]) -> None:
    from stepsight.terminal import listing, terminal

    titles = ("table", "bags", "lookups", "pooling", "p95", "max", "rows", "each", "once", "1 %", "10 %")
    rows = [
        (str(s.table), f"{s.bags:,}", f"{s.lookups:,}", f"{s.mean_pooling:.2f}", f"{s.pooling[2]:g}",
         f"{s.pooling[3]:g}", f"{s.unique_rows:,}", f"{s.mean_reuse:.2f}", f"{100 * s.reuse[0]:.0f} %",
         f"{100 * (_hit_at(s, 0.01)):.0f} %", f"{100 * (_hit_at(s, 0.1)):.0f} %")
        for s in summaries[:_TABLES_SHOWN]
    ]  # fmt: skip
    console = terminal()
    console.print(listing(titles, rows, title=str(file)))
    console.print(
        "rows: distinct ones; each: lookups per distinct row; once: share of them looked up only once;\n"
        "1 %, 10 %: lookups that a cache for this share of the distinct rows serves"
    )
    if len(summaries) > _TABLES_SHOWN:
        console.print(f"… and {counted(len(summaries) - _TABLES_SHOWN, 'more table')}; --json has them all")


def _hit_at(summary: TableSummary, share: float) -> float:
    """Hit rate of a cache that holds this share of the distinct rows."""
    import numpy as np

    return float(np.interp(share * summary.unique_rows, summary.cache_rows, summary.hit_rate))


def _print_picture(summary: TableSummary) -> None:
    from stepsight.tables.indices.index_files import reuse_labels

    click.echo(f"\ntable {summary.table}: distinct rows by how often a row is looked up")
    shown = max(i for i, share in enumerate(summary.reuse) if share > 0) + 1
    top = max(summary.reuse)
    for label, share in list(zip(reuse_labels(), summary.reuse, strict=True))[:shown]:
        click.echo(f"  {label:>13} {share:7.2%} {_bar(share / top)}")
    click.echo(f"\ntable {summary.table}: hit rate by the rows a cache holds (cold start)")
    for rows, hit in list(zip(summary.cache_rows, summary.hit_rate, strict=True))[1::2]:
        click.echo(f"  {rows:13,.0f} {hit:7.2%} {_bar(hit)}")


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
