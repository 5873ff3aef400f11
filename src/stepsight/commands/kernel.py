"""``stepsight kernel``: time one kernel, or a table of kernels, on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stepsight.commands import options
from stepsight.errors import InputError


@click.command()
@click.argument("family", required=False)
@click.argument("sizes", nargs=-1, metavar="[NAME=SIZE]...")
@click.option("--gpu", help="A GPU of the catalogue; for a table, the GPU of rows that name none.")
@click.option("--dtype", default="fp32", show_default=True, help="fp32, tf32, fp16, bf16, fp8 …")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size, as NAME=SIZE without --dim.")
@click.option("--name", default="", help="The op, where a family has several (bmm, gelu, add …).")
@options.path("--table", "CSV file, one kernel per row.")
@options.path("--out", "CSV for the table with its times; without it they are printed.")
@click.option(
    "--sustained", is_flag=True, help="At the clock that it keeps for hours, not in a short benchmark."
)
@options.json_flag
def command(
    family: str | None,
    sizes: tuple[str, ...],
    gpu: str | None,
    dtype: str,
    dims: tuple[str, ...],
    name: str,
    table: Path | None,
    out: Path | None,
    sustained: bool,
    as_json: bool,
) -> None:
    """Time one kernel of FAMILY, or every row of a table.

    \b
    stepsight kernel gemm m=4096 n=4096 k=4096 --gpu H100 --dtype bf16
    stepsight kernel --table rows.csv --out out.csv
    """
    if table is not None and sustained:
        raise InputError("--sustained", "has no effect on a table", "leave it out")
    if table is not None:
        _table(table, out, gpu, as_json)
    elif family is not None:
        _single(family, gpu, dtype, (*sizes, *dims), name, sustained, as_json)
    else:
        raise InputError("stepsight kernel", "neither a family nor --table is given", "see --help")


def _table(path: Path, out: Path | None, gpu: str | None, as_json: bool) -> None:
    from stepsight.documents import write_whole
    from stepsight.prediction.kernel_times import read_table, table_text, time_table, timed_rows

    options.check_outputs((out,))
    content = read_table(path)
    times = time_table(content, str(path), gpu)
    if out is not None:
        write_whole(out, table_text(content, times))
    counts = {label: times.source.count(label) for label in dict.fromkeys(times.source)}
    if as_json:
        answer = {"rows": len(times.source), "sources": counts, "out": str(out or "")}
        click.echo(
            json.dumps(answer if out else {**answer, "kernels": timed_rows(content, times)}, default=str)
        )
        return
    shown = ", ".join(f"{count} {label}" for label, count in counts.items())
    if out is None:
        click.echo(table_text(content, times), nl=False)
    message = f"{len(times.source)} kernels: {shown}" + (f"; written to {out}" if out else "")
    click.echo(message, err=out is None)


def _single(
    family: str, gpu: str | None, dtype: str, dims: tuple[str, ...], name: str, sustained: bool, as_json: bool
) -> None:
    import msgspec

    from stepsight.prediction.display import source_look
    from stepsight.prediction.kernel_times import kernel_time

    if gpu is None:
        raise InputError("--gpu", "missing", "name a GPU; stepsight platforms lists them")
    found = kernel_time(family, gpu, dtype, name=name, sustained=sustained, **_sizes(dims))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    shape = " ".join(f"{key}={value:g}" for key, value in found.dims.items())
    click.echo(f"{family} {dtype} {shape} on {found.gpu}")
    click.echo(f"  {found.time_us:.2f} µs  ({found.low_us:.2f} – {found.high_us:.2f})")
    click.echo(
        f"  speed of light {found.speed_of_light_us:.2f} µs, {100 * found.efficiency:.0f} % of it reached"
    )
    click.echo(f"  from {source_look(found.source).word}" + (f": {found.note}" if found.note else ""))


def _sizes(dims: tuple[str, ...]) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for dim in dims:
        key, equals, value = dim.partition("=")
        if not equals:
            raise InputError(dim, "is not NAME=SIZE", "write m=4096")
        try:
            sizes[key] = float(value)
        except ValueError:
            raise InputError(dim, "not a number", f"write {key}=1024") from None
    return sizes
