"""``stepsight kernel``: one kernel or a table of them; ``collective``: one, or an import of measured ones."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stepsight.commands import options
from stepsight.errors import InputError
from stepsight.inputs import limit
from stepsight.terminal import counted


@click.command()
@click.argument("family", required=False)
@click.argument("sizes", nargs=-1, metavar="[NAME=SIZE]...")
@click.option(
    "--gpu", help="A GPU of the catalogue, or a platform's file; for a table, that of rows that name none."
)
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
    family: str | None, sizes: tuple[str, ...], gpu: str | None, dtype: str, dims: tuple[str, ...], name: str,
    table: Path | None, out: Path | None, sustained: bool, as_json: bool,
) -> None:  # fmt: skip
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
    message = f"{counted(len(times.source), 'kernel')}: {shown}" + (f"; written to {out}" if out else "")
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
    if found.clock is not None:
        click.echo(f"  sustained: clock {100 * found.clock:.0f} % of boost")
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


UNITS = {
    "": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:e\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
BYTES_HELP = "Message size: 4096, 256KiB, 1MB, 64M … (as nccl-tests counts it); may be repeated."
IMPORT_HELP = "Read nccl-tests, rccl-tests or PARAM comms output, or a CSV, into the platform folder."


@click.command("collective")
@click.argument("kind", required=False)
@options.platform()
@click.option("--ranks", "-n", type=click.IntRange(min=1), help="GPUs in the group (default: all).")
@click.option("--nodes", type=click.IntRange(min=1), help="With --import: nodes that took part.")
@click.option("--bytes", "-b", "sizes", multiple=True, metavar="SIZE", help=BYTES_HELP)
@options.path("--import", IMPORT_HELP, "imported")
@options.json_flag
def collective(
    kind: str | None, platform: str, ranks: int | None, nodes: int | None, sizes: tuple[str, ...],
    imported: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Time a collective (KIND: all_reduce, all_to_all, all_gather, reduce_scatter, broadcast, …)."""
    if imported is not None:
        if sizes:
            raise click.UsageError("give --bytes or --import, not both")
        _import_benchmark(imported, Path(platform), kind, ranks, nodes, as_json)
        return
    if kind is None:
        raise click.UsageError("name a collective, such as all_reduce")
    _collective_times(
        kind, platform, ranks, [parse_bytes(size) for text in sizes for size in text.split(",")], as_json
    )


def parse_bytes(text: str) -> float:
    """Bytes of ``4096``, ``256KiB`` (1024s), ``1MB`` (1000s), ``64M`` (as nccl-tests: 1024s)."""
    match = _SIZE.fullmatch(text.strip())
    if not match or match["unit"].lower() not in UNITS:
        raise InputError(f"--bytes {text}", "not a size", "write 4096, 256KiB, 1MB or 64M")
    size = float(match["number"]) * UNITS[match["unit"].lower()]
    if not 1 <= size <= limit("SIZE"):
        raise InputError(f"--bytes {text}", "out of range", f"give 1 to {limit('SIZE'):,} bytes")
    return size


def _collective_times(
    kind: str, platform_name: str, ranks: int | None, sizes: list[float], as_json: bool
) -> None:
    import msgspec

    from stepsight.documents import to_json
    from stepsight.platform.load import load_platform
    from stepsight.prediction.kernel_times import collective_time

    platform = load_platform(platform_name)
    asked = sizes or [float(4**i) for i in range(5, 16)]
    rows = [msgspec.to_builtins(collective_time(kind, platform, size, ranks)) for size in asked]
    if as_json:
        click.echo(to_json(rows if len(rows) > 1 else rows[0]))
    else:
        _print_collectives(rows, platform.notes)


def _print_collectives(rows: list[dict[str, Any]], of_platform: Sequence[str]) -> None:
    from stepsight.terminal import listing, terminal

    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    shown = [
        (f"{row['bytes']:,.0f}", f"{row['time_us']:,.1f}", f"{row['low_us']:,.1f} – {row['high_us']:,.1f}",
         f"{row['busbw_GBps']:,.2f}",
         row["source"] + (f" [{notes.index(row['note']) + 1}]" if row["note"] else ""))
        for row in rows
    ]  # fmt: skip
    console = terminal()
    console.print(f"{rows[0]['collective']} over {counted(rows[0]['ranks'], 'GPU')} of {rows[0]['platform']}")
    console.print(listing(("bytes", "time µs", "from – to", "busbw GB/s", "source"), shown, left=("source",)))
    for number, note in enumerate(notes, start=1):
        console.print(f"[{number}] {note}")
    for note in of_platform:
        console.print(f"note: {note}")


def _import_benchmark(
    path: Path, folder: Path, kind: str | None, ranks: int | None, nodes: int | None, as_json: bool
) -> None:
    from stepsight.documents import to_json
    from stepsight.platform.importing import import_benchmark

    done = import_benchmark(path, folder, kind, ranks, nodes)
    first = done.run.timings[0]
    groups = sorted({(t.kind, t.ranks, t.nodes) for t in done.run.timings})
    if as_json:
        click.echo(to_json({
            "platform": str(folder), "file": str(done.path), "rows": len(done.run.timings),
            "curves": [{"collective": k, "ranks": n, "nodes": m} for k, n, m in groups],
            "skipped": list(done.run.skipped), "platform_created": done.created,
        }))  # fmt: skip
        return
    if done.created:
        click.echo(f"made {folder / 'platform.toml'}: check the GPU and how many a node has")
    what = f"{first.kind} over {counted(first.ranks, 'GPU')}" if len(groups) == 1 else f"{len(groups)} curves"
    click.echo(f"{counted(len(done.run.timings), 'time')} of {what} written to {done.path}")
    for line in done.run.skipped:
        click.echo(f"left out: {line}", err=True)
