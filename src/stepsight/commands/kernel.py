"""``stepsight kernel``: time one kernel, or a table of kernels, on a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from stepsight.commands.options import check_outputs
from stepsight.errors import InputError


@click.command()
@click.argument("family", required=False)
@click.option("--gpu", help="A GPU of the catalogue; for a table, the GPU of rows that name none.")
@click.option("--dtype", default="fp32", show_default=True, help="fp32, tf32, fp16, bf16, fp8 …")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size, such as m=4096.")
@click.option("--name", default="", help="The op, where a family has several (bmm, gelu, add …).")
@click.option("--table", type=click.Path(path_type=Path), help="CSV file, one kernel per row.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="CSV for the table with its times; without it they are printed.",
)
@click.option(
    "--sustained", is_flag=True, help="At the clock that it keeps for hours, not in a short benchmark."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    family: str | None,
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
    stepsight kernel gemm --gpu H100 --dtype bf16 --dim m=4096 --dim n=4096 --dim k=4096
    stepsight kernel --table rows.csv --out out.csv
    """
    if table is not None and sustained:
        raise InputError("--sustained", "has no effect on a table", "leave it out")
    if table is not None:
        _table(table, out, gpu, as_json)
    elif family is not None:
        _single(family, gpu, dtype, dims, name, sustained, as_json)
    else:
        raise InputError("stepsight kernel", "neither a family nor --table is given", "see --help")


def _table(path: Path, out: Path | None, gpu: str | None, as_json: bool) -> None:
    from stepsight.prediction.kernel_table import (
        read_table,
        table_text,
        time_table,
        timed_rows,
        write_table,
    )

    check_outputs((out,))
    content = read_table(path)
    times = time_table(content, str(path), gpu)
    if out is not None:
        write_table(out, content, times)
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
    import numpy as np

    from stepsight.dtypes import DTYPE_BYTES
    from stepsight.hardware.gpus import load_gpu
    from stepsight.hardware.precision import NEVER_EMULATED, emulated, has_units, lack, substitute
    from stepsight.kernels.attention.versions import impossible
    from stepsight.kernels.columns import Batch
    from stepsight.kernels.families import FAMILIES
    from stepsight.kernels.models import KernelModels
    from stepsight.kernels.notes import joined
    from stepsight.kernels.roofline import TENSOR_CORE_FAMILIES, speed_of_light_us
    from stepsight.prediction.categories import source_look
    from stepsight.program.job import Kernel
    from stepsight.records import nearest
    from stepsight.simulate.sustained import alone_us

    if family not in FAMILIES or not FAMILIES[family].dims:
        known = [key for key, value in FAMILIES.items() if value.dims]
        raise InputError(f"kernel family {family!r}", "unknown", nearest(family, known))
    if dtype not in DTYPE_BYTES:
        raise InputError(f"--dtype {dtype}", "unknown", nearest(dtype, DTYPE_BYTES))
    if gpu is None:
        raise InputError("--gpu", "missing", "name a GPU; stepsight platforms lists them")
    sizes = _sizes(family, dims, FAMILIES[family].dims)
    columns = {key: np.array([value]) for key, value in sizes.items()}
    batch = Batch.of(family, dtype, columns, name or family)
    spec = load_gpu(gpu)
    lacks = family in TENSOR_CORE_FAMILIES and not has_units(spec, dtype)
    if lacks and dtype in NEVER_EMULATED:
        raise InputError(f"--dtype {dtype}", lack(spec, dtype), substitute(spec, dtype))
    why = impossible(batch.kinds[0].variant, spec, dtype) if name and family.startswith("attention") else None
    if why is not None:
        raise InputError(f"--name {name}", why.problem, why.fix)
    estimate = KernelModels.for_gpu(spec).estimate_batch(batch)[0]
    if sustained:
        kernel = Kernel(family, tuple(sizes.items()), dtype)
        estimate = replace(estimate, time_us=alone_us(kernel, estimate.time_us, spec))
    note = joined(emulated(spec, dtype) if lacks else "", estimate.note)
    light = float(speed_of_light_us(batch, spec)[0])
    answer = {
        "family": family,
        "gpu": spec.name,
        "dtype": dtype,
        "dims": sizes,
        "time_us": estimate.time_us,
        "low_us": estimate.low_us,
        "high_us": estimate.high_us,
        "source": estimate.source.label,
        "note": note,
        "speed_of_light_us": light,
        "efficiency": light / estimate.time_us,
    }
    if as_json:
        click.echo(json.dumps(answer))
        return
    shape = " ".join(f"{key}={value:g}" for key, value in sizes.items())
    click.echo(f"{family} {dtype} {shape} on {spec.name}")
    click.echo(f"  {estimate.time_us:.2f} µs  ({estimate.low_us:.2f} – {estimate.high_us:.2f})")
    click.echo(f"  speed of light {light:.2f} µs, {answer['efficiency']:.0%} of it reached")
    words = source_look(estimate.source.label).word
    click.echo(f"  from {words}" + (f": {note}" if note else ""))


def _sizes(family: str, dims: tuple[str, ...], known: tuple[str, ...]) -> dict[str, float]:
    from stepsight.kernels.families import missing_sizes
    from stepsight.records import nearest

    sizes: dict[str, float] = {}
    for dim in dims:
        key, _, value = dim.partition("=")
        if key not in known:
            raise InputError(f"--dim {dim}", f"{family} has no size {key!r}", nearest(key, known))
        try:
            sizes[key] = float(value)
        except ValueError:
            raise InputError(f"--dim {dim}", "not a number", f"write {key}=1024") from None
        if not 0 <= sizes[key] < float("inf"):
            raise InputError(f"--dim {dim}", "a size is zero or more and finite")
    missing = missing_sizes(family, sizes)
    if missing:
        fix = "give " + " ".join(f"--dim {name}=…" for name in missing)
        raise InputError("--dim", f"{family} needs {', '.join(missing)}", fix)
    return sizes
