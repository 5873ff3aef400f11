"""``stepsight inspect``: look into traces (or, as a subcommand, into index files)."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from stepsight.commands.outputs import check_outputs, command_line, print_written, write_files


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
        other = importlib.import_module("stepsight.commands.inspect_indices").command
        with other.make_context("indices", list(rest), parent=ctx) as sub:
            return other.invoke(sub)


@click.command("inspect", cls=TracesOrIndices)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with charts here.")
def command(traces: tuple[Path, ...], as_json: bool, html: Path | None) -> None:
    """Look into TRACES: profiler files or folders of one run (`inspect indices FILE` for index files).

    Shows step times on the GPU's own clock, busy and idle time and exposed communication per
    rank, stragglers, top operators and kernels, host overheads, the critical path, and which
    models would time the kernels.
    """
    from stepsight.prediction.traced.inspection import inspect_run
    from stepsight.report.console.inspection import show
    from stepsight.trace.step.run import load_trace

    check_outputs([html])
    inspection = inspect_run(load_trace(traces))
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json(inspection))
    else:
        show(inspection)
    if html:
        from stepsight.report.page.inspection import inspection_page

        written = write_files([(html, inspection_page(inspection, command=command_line()))])
        if not as_json:
            print_written(written)
