"""Kernels of real steps, as profilers saw them: every family on every GPU, and the time without a model.

No row is fitted by itself, but constants of vector kernels and of convolutions were read off medians over
these rows and others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.datasets.folder import read_table
from lab.datasets.kernel_tables.rows import rows_of
from lab.score.kernels.judged import Judged
from stepsight.estimate import FloatArray
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch
from stepsight.kernels.families import FAMILIES
from stepsight.kernels.models import EMBEDDING_FAMILIES, KernelModels
from stepsight.kernels.roofline import peak_flops
from stepsight.prediction.kernel_times import Table
from stepsight.score import CHOSEN, FIT, Figure, Score

TOPIC = "kernels"
FILE = "trace_kernels.parquet"
ABOVE_US = 15.0
LEAST_ROWS = 10
OFF = 0.20
UNMODELLED = 0.05
"""Missed where scalars are not recorded (pooling, slices in fused kernels, sorts): no sizes there."""
SLOW_CLOCKS = {"NVIDIA A100-PCIE-40GB": "as at half of the clock"}
"""Traces recorded below the GPU's usual clock; shown, not judged. On this one GEMMs and kernels bound by
instructions take 1.6 to 1.9 times as long and small kernels twice, while large concatenations reach the full
bandwidth."""
CALL = ("file", "rank", "op", "input_dims", "input_types")
"""What rows of one call share."""
COLLECTIVE = "nccl"
LOOKUP = "split_embedding"
"""FBGEMM's lookups and their gradients, which a row's shapes do not size (see `validate embedding`)."""


def traced_scores(data: Path) -> list[Score]:
    """One line per family and GPU with ten kernels or more, judged by the median; then the time modelled."""
    path = data / "kernels" / FILE
    if not path.is_file():
        return []
    table = read_table(path)
    gpus = np.array([str(gpu) for gpu in table["gpu"]])
    found: list[Score] = []
    every: dict[str, list[Judged]] = {}
    for gpu in dict.fromkeys(gpus.tolist()):
        if find_gpu(gpu) is None:
            continue
        part = {key: np.asarray(column)[gpus == gpu] for key, column in table.items()}
        for family, judged in _families(gpu, part):
            if len(judged.measured) >= LEAST_ROWS:
                found.append(_family_score(judged, gpu))
            if gpu not in SLOW_CLOCKS:
                every.setdefault(family, []).append(judged)
    return [*found, *_intervals(every), *_covered(table, gpus)]


def _families(gpu: str, part: Table) -> Iterator[tuple[str, Judged]]:
    """Kernels of each family on one GPU above `ABOVE_US`."""
    entry = find_gpu(gpu)
    if entry is None:
        return
    models = KernelModels.for_gpu(entry.gpu)
    times = np.asarray(part["dur_us_mean"], dtype=np.float64)
    groups: dict[str, list[Judged]] = {}
    lookups = np.array([LOOKUP in str(name) for name in part["kernel"]])
    for rows in rows_of(part, FILE):
        batch = rows.batch
        if batch.family in EMBEDDING_FAMILIES or batch.family not in FAMILIES:
            continue
        own = times[batch.positions]
        if batch.family.startswith("attention"):
            batch, own = _whole_calls(batch, own, part)
        kept = np.nonzero((own > ABOVE_US) & ~lookups[batch.positions] & _possible(batch, own, entry.gpu))[0]
        if len(kept):
            chosen = batch.take(kept)
            answer = models.estimate_batch(chosen)
            judged = Judged.of("", answer.time_us, own[kept], answer.spread, "")
            groups.setdefault(batch.family, []).append(judged)
    for family, parts in groups.items():
        kind = f"in traces: {family}"
        used = f"kernels above {ABOVE_US:.0f} µs"
        yield family, Judged.pooled(f"{kind} {gpu}", parts, used, kind)


def _whole_calls(batch: Batch, time_us: FloatArray, part: Table) -> tuple[Batch, FloatArray]:
    """Calls of attention with the time of all their kernels: a gradient has three."""
    call = [tuple(str(part[key][at]) for key in CALL) for at in batch.positions]
    together: dict[tuple[str, ...], list[int]] = {}
    for i, key in enumerate(call):
        together.setdefault(key, []).append(i)
    first = np.array([members[0] for members in together.values()])
    return batch.take(first), np.array([time_us[members].sum() for members in together.values()])


def _possible(batch: Batch, time_us: FloatArray, spec: GpuSpec) -> npt.NDArray[np.bool_]:
    """Whether products take no less than their FLOPs at peak: an operator's other kernels show its shapes."""
    if batch.family != "gemm":
        return np.ones(len(batch), dtype=bool)
    return np.asarray(time_us >= batch.flops / peak_flops(batch, spec) * 1e6)


def _family_score(judged: Judged, gpu: str) -> Score:
    """The bar is on the family as a whole: the median of measured over predicted."""
    middle = float(np.median(judged.measured / judged.predicted))
    line = judged.score(exposure=FIT)
    note = f"median of measured over predicted {middle:.2f}; {line.note}"
    if gpu in SLOW_CLOCKS:
        return replace(line, note=f"{note}; not judged, {SLOW_CLOCKS[gpu]}")
    target, met = f"median off by ≤ {OFF:.0%}", 1 - OFF <= middle <= 1 + OFF
    return replace(line, note=note, target=target, met=met)


def _intervals(families: Mapping[str, Sequence[Judged]]) -> Iterator[Score]:
    """Each family on all GPUs: what share of its kernels the 90 % intervals hold."""
    for name, parts in sorted(families.items()):
        used, kind = f"{parts[0].used}, usual clocks", "in traces: one family, all GPUs"
        judged = Judged.pooled(f"in traces: {name}, all GPUs", parts, used, kind)
        if len(judged.measured) >= LEAST_ROWS:
            yield judged.score(exposure=FIT)


def _covered(table: Table, gpus: npt.NDArray[np.str_]) -> list[Score]:
    """Device time of kernels (collectives apart) whose family has a model, over all of it: by source and GPU,
    then of all."""
    times = np.asarray(table["dur_us_mean"], dtype=np.float64) * np.asarray(table["n"], dtype=np.float64)
    kernels = np.array([COLLECTIVE not in str(name).lower() for name in table["kernel"]])
    kernels &= np.array([find_gpu(gpu) is not None for gpu in gpus.tolist()])
    modelled = np.zeros(len(times), dtype=bool)
    for gpu in dict.fromkeys(gpus.tolist()):
        if find_gpu(gpu) is None:
            continue
        at = np.nonzero(gpus == gpu)[0]
        part = {key: np.asarray(column)[at] for key, column in table.items()}
        for rows in rows_of(part, FILE):
            if rows.batch.family in FAMILIES:
                modelled[at[rows.batch.positions]] = True
    sources = np.array([str(source) for source in table["source"]]) if "source" in table else gpus
    found = []
    for source, gpu in dict.fromkeys(zip(sources.tolist(), gpus.tolist(), strict=True)):
        mine = kernels & (sources == source) & (gpus == gpu)
        if mine.any():
            name = f"in traces: device time with a model, {source} {gpu}"
            kind = "in traces: device time with a model, one source and GPU"
            found.append(_share(name, times, mine, modelled, None, kind))
    return [*found, _share("in traces: device time with a model", times, kernels, modelled, UNMODELLED)]


def _share(
    name: str, times: FloatArray, kernels: npt.NDArray[np.bool_], modelled: npt.NDArray[np.bool_],
    bar: float | None, kind: str = "",
) -> Score:  # fmt: skip
    missing = float(1 - times[kernels & modelled].sum() / times[kernels].sum())
    return Score.reading(
        TOPIC, name, int(kernels.sum()), Figure("without a model", missing),
        "all kernels but collectives, GPUs that are named", bar=bar, exposure=CHOSEN, kind=kind,
    )  # fmt: skip
