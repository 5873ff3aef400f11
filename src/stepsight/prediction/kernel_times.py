"""One kernel, one collective, or a table of kernels, each with where its time comes from.

A table has one kernel per row: a column ``op`` (or ``family``) names the kernel family, ``gpu`` the board,
``dtype`` the type, ``name`` the variant where a family has several, and one column per size of the family.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepsight.collectives.roofline import bus_factor
from stepsight.dtypes import DTYPE_BYTES
from stepsight.errors import InputError
from stepsight.estimate import Estimates, FloatArray, IntArray, Source
from stepsight.hardware.gpus import find_gpu, load_gpu
from stepsight.hardware.spec import NEVER_EMULATED, GpuSpec, emulated, has_units, lack, substitute
from stepsight.inputs import csv_rows, is_there, limit, read_text
from stepsight.kernels.attention import impossible
from stepsight.kernels.columns import Batch, complete, joined, kinds
from stepsight.kernels.families import FAMILIES, missing_sizes
from stepsight.kernels.models import KernelModels
from stepsight.kernels.roofline import TENSOR_CORE_FAMILIES, speed_of_light_us
from stepsight.platform.conditions import check_axes
from stepsight.platform.load import Platform, load_platform
from stepsight.program.job import COLLECTIVE_KINDS, Kernel
from stepsight.records import nearest
from stepsight.simulate.sustained import sustained_alone
from stepsight.terminal import counted

Table = Mapping[str, Sequence[object] | npt.NDArray[np.generic]]

DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
}  # fmt: skip
RENAMED = {"time_us": "measured_time_us"}
"""A measured column keeps its values under this name; other columns of the answer's names become given_…"""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of a kernel under the names that ``stepsight kernel --json`` prints."""

    family: str
    gpu: str
    dtype: str
    dims: Mapping[str, float]
    time_us: float
    low_us: float
    high_us: float
    source: str
    note: str
    speed_of_light_us: float
    efficiency: float
    clock: float | None = None
    """Of a sustained time, the clock as a share of boost."""


def kernel_time(
    family: str, gpu: str, dtype: str = "fp32", *, name: str = "", sustained: bool = False, **sizes: float
) -> KernelTime:
    """The time of one kernel on a GPU of the catalogue or of a platform's file.

    ``name`` is the variant where a family has several (bmm, gelu, flash2 …); ``sustained`` asks for the clock
    that the GPU keeps for hours instead of a short benchmark's.

    >>> kernel_time("gemm", "H100-SXM", "bf16", m=4096, n=4096, k=4096).source
    'learned'
    """
    _check_family(family, f"kernel family {family!r}", "unknown")
    if dtype not in DTYPE_BYTES:
        raise InputError(f"dtype {dtype}", "unknown", nearest(dtype, DTYPE_BYTES))
    _check_sizes(family, sizes)
    models = _models_on(gpu)
    spec = models.spec
    batch = Batch.of(family, dtype, {key: np.array([value]) for key, value in sizes.items()}, name or family)
    note = without_units(batch, spec)
    if note and dtype in NEVER_EMULATED:
        raise InputError(f"dtype {dtype}", lack(spec, dtype), substitute(spec, dtype))
    why = impossible(batch.kinds[0].variant, spec, dtype) if name and family.startswith("attention") else None
    if why is not None:
        raise InputError(f"name {name}", why.problem, why.fix)
    estimate, clock = models.estimate_batch(batch)[0], None
    if sustained:
        time_us, clock = sustained_alone(Kernel(family, tuple(sizes.items()), dtype), estimate.time_us, spec)
        estimate = replace(estimate, time_us=time_us)
    light_us = float(speed_of_light_us(batch, spec)[0])
    return KernelTime(
        family=family,
        gpu=spec.name,
        dtype=dtype,
        dims=dict(sizes),
        time_us=estimate.time_us,
        low_us=estimate.low_us,
        high_us=estimate.high_us,
        source=estimate.source.label,
        note=joined(note, estimate.note),
        speed_of_light_us=light_us,
        efficiency=light_us / estimate.time_us,
        clock=clock,
    )


def _models_on(gpu: str) -> KernelModels:
    """The models of a GPU of the catalogue, or of a file's or folder's."""
    if find_gpu(gpu) is None and is_there(gpu):
        return load_platform(gpu).kernels
    return KernelModels.for_gpu(load_gpu(gpu))


LOOKUPS = ("embedding", "embedding_backward")
MAY_BE_ZERO = frozenset({
    "bytes", "read_bytes", "write_bytes", "causal", "window", "padding", "indexed", "reordered", "flops",
})  # fmt: skip


def _check_family(family: str, where: str, problem: str) -> None:
    known = [name for name, value in FAMILIES.items() if value.dims]
    if family in LOOKUPS:
        fix = "predict a DLRM, or `stepsight shard` times the lookups of each table"
        raise InputError(where, "its time depends on the tables and their indices", fix)
    if family not in known:
        raise InputError(where, problem, nearest(family, known))


def _check_sizes(family: str, sizes: Mapping[str, float]) -> None:
    known = FAMILIES[family].dims
    for key, value in sizes.items():
        if key not in known:
            raise InputError(f"size {key}", f"{family} has no size {key!r}", nearest(key, known))
        least = 0 if key in MAY_BE_ZERO else 1
        if not least <= value < float("inf") or value != int(value):
            raise InputError(
                f"size {key}={value:g}", f"must be a whole number of at least {least}", "give a real size"
            )
    _check_shared(np.array([sizes.get("shared", 0)]), "size shared")
    missing = missing_sizes(family, sizes)
    if missing:
        fix = "give " + ", ".join(f"{name}=…" for name in missing)
        raise InputError(f"kernel {family}", f"needs {', '.join(missing)}", fix)


def _check_shared(given: FloatArray, where: str) -> None:
    """Which matrix all of a batch have in common."""
    for wrong in given[~np.isin(given, (0, 1, 2))].tolist():
        raise InputError(where, f"is {wrong:g}", "1: one left matrix for all of a batch, 2: one right one")


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """The time of a collective under the names that ``stepsight collective --json`` prints."""

    collective: str
    platform: str
    ranks: int
    bytes: float
    time_us: float
    low_us: float
    high_us: float
    algbw_GBps: float  # noqa: N815
    busbw_GBps: float  # noqa: N815
    source: str
    basis: str
    note: str


def collective_time(
    kind: str, platform: Platform | str, message_bytes: float, ranks: int | None = None
) -> CollectiveTime:
    """The time of one collective over ``ranks`` GPUs of a platform (all by default).

    ``message_bytes`` counts as nccl-tests does.

    >>> collective_time("all_reduce", "8xH100-SXM", 2**20).ranks
    8
    """
    kind = _collective(kind)
    on = platform if isinstance(platform, Platform) else load_platform(platform)
    n = on.spec.ranks if ranks is None else ranks
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise InputError("ranks", f"must be a number of GPUs, not {n!r}", "give how many take part, as 8")
    if isinstance(message_bytes, bool) or not isinstance(message_bytes, Real):
        raise InputError(
            "message_bytes", f"must be a number of bytes, not {message_bytes!r}", "give one size"
        )
    if n > on.spec.ranks:
        raise InputError(
            f"platform {on.name}", f"has {counted(on.spec.ranks, 'GPU')}, the group needs {n}",
            "name a larger platform or give fewer ranks",
        )  # fmt: skip
    check_axes(on.site, ("world",), f"platform {on.name}")
    estimate = on.conditions.collective("world", kind, message_bytes, tuple(range(n)))
    algbw = message_bytes / estimate.time_us / 1e3 if estimate.time_us > 0 else 0.0
    return CollectiveTime(
        collective=kind,
        platform=on.name,
        ranks=n,
        bytes=message_bytes,
        time_us=estimate.time_us,
        low_us=estimate.low_us,
        high_us=estimate.high_us,
        algbw_GBps=algbw,
        busbw_GBps=algbw * bus_factor(kind, n),
        source=estimate.source.label,
        basis=estimate.note or _basis(estimate.source, n),
        note=estimate.note,
    )


def _collective(name: str) -> str:
    """The kind that is meant, also as NCCL and its tests write it (``AllReduce``, ``alltoall_perf``)."""
    plain = _plain(str(name)).removesuffix("perf")
    for kind in COLLECTIVE_KINDS:
        if _plain(kind) == plain:
            return kind
    raise InputError(f"collective {name!r}", "unknown", nearest(str(name), COLLECTIVE_KINDS))


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _basis(source: Source, ranks: int) -> str:
    """Where an answer without a note comes from."""
    if ranks == 1:
        return "a group of one moves nothing"
    return "interpolated between measured sizes" if source is Source.MEASURED else source.label


def read_table(path: Path) -> Table:
    """The columns of a CSV file."""
    if not path.is_file():
        raise InputError(str(path), "no such file", "give a CSV file of kernels")
    rows = csv_rows(read_text(path), str(path))
    if len(rows) < 2:
        raise InputError(str(path), "has no rows", "the first line names the columns")
    header, body = rows[0], rows[1:]
    short = next((i for i, row in enumerate(body) if len(row) != len(header)), None)
    if short is not None:
        raise InputError(
            f"{path}, line {short + 2}", f"{len(body[short])} fields, not {len(header)}", "correct the row"
        )
    return dict(zip(header, map(list, zip(*body, strict=True)), strict=True))


class TableTimes:
    """What the models answer for every row of a table."""

    def __init__(self, n: int) -> None:
        self.time_us: FloatArray = np.full(n, np.nan)
        self.spread: FloatArray = np.zeros(n)
        self.source: list[str] = [Source.DEFAULT.label] * n
        self.note: list[str] = [""] * n

    def put(self, batch: Batch, answer: Estimates, models: KernelModels) -> None:
        """Answers of one batch."""
        at = batch.positions
        self.time_us[at] = answer.time_us
        self.spread[at] = answer.spread
        note = without_units(batch, models.spec)
        for i, position in enumerate(at.tolist()):
            self.source[position] = Source(int(answer.source[i])).label
            self.note[position] = joined(note, answer.notes.get(i, ""))


def time_table(table: Table, where: str = "table", gpu: str | None = None) -> TableTimes:
    """Times of all rows of a table, in its order."""
    n = max((len(column) for column in table.values()), default=0)
    times = TableTimes(n)
    models: dict[str, KernelModels] = {}
    for name, batch in _batches(table, where, gpu, n):
        if name not in models:
            models[name] = _models_on(name)
        times.put(batch, models[name].estimate_batch(batch), models[name])
    return times


def _batches(table: Table, where: str, gpu: str | None, n: int) -> Iterator[tuple[str, Batch]]:
    """Rows of one GPU, family and type together."""
    key = "family" if "family" in table else "op"
    if key not in table:
        raise InputError(where, "no column op", "name each row's kernel family: gemm, conv, softmax …")
    if gpu is None and "gpu" not in table:
        raise InputError(where, "no column gpu", "add one, or pass --gpu")
    gpus = [str(value) for value in table["gpu"]] if "gpu" in table else [str(gpu)] * n
    families = [str(value) for value in table[key]]
    dtypes = [DTYPES.get(str(v).lower(), str(v).lower()) for v in table.get("dtype", ["fp32"] * n)]
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, group in enumerate(zip(gpus, families, dtypes, strict=True)):
        groups.setdefault(group, []).append(i)
    for (board, family, dtype), positions in groups.items():
        at = np.array(positions)
        dims = _sizes(table, family, at, where)
        names = [str(table["name"][i]) for i in positions] if "name" in table else [family] * len(at)
        yield (
            board,
            Batch(family, dtype, complete(family, dtype, dims, len(at)), kinds(family, names, len(at)), at),
        )


def _sizes(table: Table, family: str, at: IntArray, where: str) -> dict[str, FloatArray]:
    _check_family(family, f"{where}, row {int(at[0]) + 1}", f"unknown op {family!r}")
    wanted = FAMILIES[family].dims
    dims = {key: numbers(table, key, at, where) for key in wanted if key in table}
    _check_shared(dims.get("shared", np.zeros(1)), f"{where}: shared")
    missing = missing_sizes(family, dims)
    if missing:
        raise InputError(
            where, f"{family} needs {', '.join(missing)}", "add the columns " + ", ".join(missing)
        )
    return dims


def numbers(table: Table, key: str, at: IntArray, where: str) -> FloatArray:
    """A column's sizes as numbers; an error names the row."""
    column = table[key]
    found = np.empty(len(at))
    for n, i in enumerate(at):
        try:
            found[n] = float(column[i])
        except (TypeError, ValueError):
            place = f"{where}, row {int(i) + 1}, column {key}"
            raise InputError(place, f"{column[i]!r} is not a number", "correct or remove the row") from None
    wrong = ~(np.isfinite(found) & (np.abs(found) <= limit("SIZE")))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise InputError(
            f"{where}, row {int(at[first]) + 1}, column {key}", f"is {found[first]:g}", "give a real size"
        )
    return found


def without_units(batch: Batch, gpu: GpuSpec) -> str:
    """The note on rows in a type that the GPU has no units for."""
    if batch.family not in TENSOR_CORE_FAMILIES or has_units(gpu, batch.dtype):
        return ""
    if batch.dtype in NEVER_EMULATED:
        return f"{lack(gpu, batch.dtype)}, so this does not run; {substitute(gpu, batch.dtype)}"
    return emulated(gpu, batch.dtype)


def table_text(table: Table, times: TableTimes) -> str:
    """The table with its times as CSV."""
    rows = timed_rows(table, times)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0] if rows else ())
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"time_us": f"{row['time_us']:.4f}", "spread": f"{row['spread']:.3f}"})
    return text.getvalue()


def timed_rows(table: Table, times: TableTimes) -> list[dict[str, object]]:
    """A mapping for each row: the table's own columns, then time_us, source, spread and note."""
    answer = {
        "time_us": times.time_us.tolist(), "source": times.source, "spread": times.spread.tolist(),
        "note": times.note,
    }  # fmt: skip
    own = {
        (RENAMED.get(key, f"given_{key}") if key in answer else key): list(column)
        for key, column in table.items()
    }
    out = {**own, **answer}
    return [dict(zip(out, row, strict=True)) for row in zip(*out.values(), strict=True)]
