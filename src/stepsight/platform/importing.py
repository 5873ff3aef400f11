"""Bring a benchmark's output into a user's platform folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepsight.collectives.files.nccl_tests import is_nccl_tests, read_nccl_tests
from stepsight.collectives.files.param_comms import is_param_comms, read_param_comms
from stepsight.collectives.files.platform_files import FOLDER, read_timings_csv, write_timings_csv
from stepsight.collectives.files.timings import BenchmarkRun, Timing
from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.hardware.gpus import find_gpu
from stepsight.inputs import read_text
from stepsight.platform.load import load_platform

PLATFORM_FILE = "platform.toml"
MAKERS = ("NVIDIA", "AMD", "Tesla", "Instinct", "GeForce", "Radeon", "Graphics")


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
    text = read_text(path, errors="replace")
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
    largest = max(run.timings, key=lambda timing: timing.ranks)
    created = not (folder / PLATFORM_FILE).is_file()
    if created:
        _create_platform(folder, path, run)
    else:
        _check_room(folder, path, largest)
    kinds = {timing.kind for timing in run.timings}
    stem = f"{largest.kind}_{largest.ranks}" if len(kinds) == 1 else path.stem
    target = folder / FOLDER / f"{stem}{f'x{largest.nodes}' if largest.nodes > 1 else ''}.csv"
    write_timings_csv(target, run.timings)
    return Imported(target, run, created)


def _check_room(folder: Path, path: Path, largest: Timing) -> None:
    """A group larger than the platform could never be asked for."""
    spec = load_platform(folder).spec
    if largest.ranks > spec.ranks or largest.nodes > spec.nodes:
        raise InputError(
            str(path),
            f"measured {largest.ranks} GPUs on {largest.nodes} nodes, "
            f"but {folder} has {spec.ranks} on {spec.nodes}",
            f"set gpus_per_node and nodes in {folder / PLATFORM_FILE}, or import into another platform",
        )


def _create_platform(folder: Path, path: Path, run: BenchmarkRun) -> None:
    """A minimal platform around the GPU that the benchmark named."""
    gpu = _named_gpu(run.gpu)
    if gpu is None:
        seen = f"a GPU that the catalogue does not know ({run.gpu})" if run.gpu else "no GPU"
        raise InputError(
            str(folder), f"is no platform folder yet, and {path} names {seen}",
            f'write {folder / PLATFORM_FILE} with gpu = "…" and gpus_per_node = N first',
        )  # fmt: skip
    largest = max(run.timings, key=lambda timing: timing.ranks)
    per_node = -(-largest.ranks // largest.nodes)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(
        folder / PLATFORM_FILE,
        f'name = "{folder.name}"\ngpu = "{gpu}"\ngpus_per_node = {per_node}\nnodes = {largest.nodes}\n',
    )


def _named_gpu(name: str) -> str | None:
    """The catalogue's name of a GPU as drivers spell it, makers' words left out where they hinder."""
    words = name.split()
    for spelt in (words, [word for word in words if word not in MAKERS]):
        entry = find_gpu(" ".join(spelt)) if spelt else None
        if entry:
            return entry.gpu.name
    return None
