"""Bring a benchmark's output into a user's platform folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepsight.collectives.nccl_tests import is_nccl_tests, read_nccl_tests
from stepsight.collectives.param_comms import is_param_comms, read_param_comms
from stepsight.collectives.platform_files import FOLDER, read_timings_csv, write_timings_csv
from stepsight.collectives.timings import BenchmarkRun
from stepsight.errors import InputError
from stepsight.platform.gpus import find_gpu

PLATFORM_FILE = "platform.toml"


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import wrote: the file, the run, and whether the platform itself is new."""

    path: Path
    run: BenchmarkRun
    created: bool


def read_benchmark(
    path: Path, kind: str | None = None, ranks: int | None = None, nodes: int | None = None
) -> BenchmarkRun:
    """Any output that we know: nccl-tests, rccl-tests, PARAM comms, or our own CSV."""
    if not path.is_file():
        raise InputError(str(path), "no such file", "give the output of nccl-tests, PARAM comms or a CSV")
    if path.suffix == ".csv":
        return BenchmarkRun(tuple(read_timings_csv(path)))
    text = path.read_text(encoding="utf-8", errors="replace")
    if is_param_comms(text):
        return read_param_comms(path, ranks, nodes)
    if is_nccl_tests(text):
        return read_nccl_tests(path, kind, ranks, nodes)
    raise InputError(
        str(path), "neither nccl-tests, PARAM comms nor a CSV of ours",
        "columns of a CSV: kind, ranks, nodes, bytes, time_us",
    )  # fmt: skip


def import_benchmark(
    path: Path, folder: Path, kind: str | None = None, ranks: int | None = None, nodes: int | None = None
) -> Imported:
    """Read an output and keep its times in the platform folder, which is made where it is missing."""
    run = read_benchmark(path, kind, ranks, nodes)
    created = not (folder / PLATFORM_FILE).is_file()
    if created:
        _create_platform(folder, path, run)
    first = run.timings[0]
    kinds = {timing.kind for timing in run.timings}
    stem = f"{first.kind}_{first.ranks}" if len(kinds) == 1 else path.stem
    target = folder / FOLDER / f"{stem}{f'x{first.nodes}' if first.nodes > 1 else ''}.csv"
    write_timings_csv(target, run.timings)
    return Imported(target, run, created)


def _create_platform(folder: Path, path: Path, run: BenchmarkRun) -> None:
    """A minimal platform around the GPU that the benchmark named."""
    gpu = find_gpu(run.gpu.removeprefix("NVIDIA ").removeprefix("AMD ").strip()) if run.gpu else None
    if gpu is None:
        seen = f"GPU {run.gpu!r}" if run.gpu else "no GPU"
        raise InputError(
            str(folder), f"is no platform folder yet, and {path} names {seen} that the catalogue knows",
            f'write {folder / PLATFORM_FILE} with gpu = "…" and gpus_per_node = N first',
        )  # fmt: skip
    first = run.timings[0]
    per_node = -(-first.ranks // first.nodes)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLATFORM_FILE).write_text(
        f'name = "{folder.name}"\ngpu = "{gpu.gpu.name}"\n'
        f"gpus_per_node = {per_node}\nnodes = {first.nodes}\n",
        encoding="utf-8",
    )
