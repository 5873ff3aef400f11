"""Bring a benchmark's output into a user's platform folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepsight.collectives.benchmark_files import (
    FOLDER,
    BenchmarkRun,
    Timing,
    read_nccl_tests,
    read_param_comms,
    read_timings_csv,
    write_timings_csv,
)
from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.hardware.data_sheet import GBIT_PER_GBYTE
from stepsight.hardware.gpus import CATALOGUE, find_gpu, gpu_catalogue
from stepsight.hardware.spec import LinkSpec, PlatformSpec
from stepsight.inputs import read_text
from stepsight.platform.load import load_platform
from stepsight.records import nearest

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
    if "COMMS-RES-" in text:
        return read_param_comms(path, ranks, nodes)
    if "algbw" in text and "busbw" in text:
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


def described(name: str) -> str:
    """The file of a GPU of the catalogue, or of a named platform of such GPUs."""
    entry = find_gpu(name)
    if entry is not None:
        head = "# Edit, save as mine.toml, predict with: -p mine.toml (one GPU) or -p 8xmine.toml (eight)\n"
        return head + (CATALOGUE / f"{entry.gpu.name}.toml").read_text(encoding="utf-8")
    try:
        return _platform(load_platform(name).spec)
    except InputError as error:
        raise InputError(f"platforms --show {name}", error.problem, nearest(name, gpu_catalogue())) from None


def _platform(spec: PlatformSpec) -> str:
    lines = [
        f"# {spec.name}: edit, save as mine.toml, predict with: -p mine.toml",
        f'name = "{spec.name}"',
        f'gpu = "{spec.gpu.name}"           # of the catalogue; or a [gpu] table, see --show {spec.gpu.name}',
        f"gpus_per_node = {spec.gpus_per_node}",
        f"nodes = {spec.nodes}",
        "",
        "[link]                          # between the GPUs of a node",
        *_link(spec.link),
    ]
    if spec.nic:
        lines += [
            "",
            "[nic]                           # between nodes, per GPU",
            *_link(spec.nic, network=True),
        ]
    lines += ["", "[host]", "speed = 1.0                     # 2.0 is a host twice as fast"]
    return "\n".join(lines) + "\n"


def _link(link: LinkSpec, *, network: bool = False) -> list[str]:
    rate = (
        f"gbit_per_s = {link.gbps * GBIT_PER_GBYTE:g}                # Gb/s, one direction"
        if network
        else f"gbps = {link.gbps:g}                      # GB/s per GPU, one direction"
    )
    return [f'kind = "{link.kind}"', rate, f"latency_us = {link.latency_us:g}"]
