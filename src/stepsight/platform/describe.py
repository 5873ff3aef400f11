"""A platform or a GPU as the TOML file that describes it."""

from __future__ import annotations

from stepsight.errors import InputError
from stepsight.hardware.gpus import CATALOGUE, find_gpu, gpu_catalogue
from stepsight.hardware.spec import LinkSpec, PlatformSpec
from stepsight.platform.load import load_platform
from stepsight.records import nearest

GBIT_PER_GBYTE = 8.0


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
