"""What large collectives reach of a PCIe link, by path, from machines of the tables; each from the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.fit.collectives.rows import MeasuredRows, read_aiconfigurator, read_nccl
from stepsight.collectives.roofline import ONE_WAY, bus_factor
from stepsight.errors import InputError

MACHINES = (
    ("RTX-2080 node", 12.0, False),
    ("2xRTX2080Ti", 12.0, False),
    ("Titan-RTX node", 12.0, False),
    ("RTX-3090 node", 24.0, False),
    ("2xRTX4090 (Paratera)", 24.0, False),
    ("8xRTX4090 box (Paratera)", 24.0, False),
    ("8xRTX4090 box (lc", 24.0, False),
    ("RunPod) NCCL_P2P_DISABLE", 24.0, False),
    ("8xA100-PCIe-40GB box", 24.0, True),
    ("1 node x2 GPU (PCIe)", 24.0, True),
    ("external PCIe fabric", 24.0, True),
)
"""Words of the table's ``platform``, link rate in GB/s, peer access."""
SYSTEMS = (("l40s", 24.0), ("rtx_pro_6000_server", 48.0))
"""The same of aiconfigurator-core's tables, all with peer access."""
BRIDGED = ("RTX-3090 node", 2)
"""Pairs joined by an NVLink bridge: no PCIe."""
LARGEST = 0.25
"""Sizes of at least this share of a run's largest one count."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What one machine reached of its link with one path, over kinds and group sizes."""

    machine: str
    path: str
    share: float


def reached_shares(data: Path) -> list[Reached]:
    """Every machine's median share by path."""
    found: dict[tuple[str, str], list[float]] = {}
    nccl = read_nccl(data)
    for words, gbps, peer in MACHINES:
        mine = np.array([words in platform for platform in nccl.platform]) & (nccl.nodes == 1)
        _collect(found, words, nccl.where(mine), gbps, peer)
    for system, gbps in SYSTEMS:
        try:
            _collect(found, system, read_aiconfigurator(system), gbps, True)
        except InputError:  # the package is not installed
            continue
    return [Reached(machine, path, float(np.median(each))) for (machine, path), each in found.items()]


def _collect(
    found: dict[tuple[str, str], list[float]], machine: str, rows: MeasuredRows, gbps: float, peer: bool
) -> None:
    for (kind, ranks), run in rows.groups(("kind", "ranks")):
        if (machine, ranks) == BRIDGED or bus_factor(str(kind), int(ranks)) <= 0:
            continue
        large = run.bytes >= LARGEST * run.bytes.max()
        rate = bus_factor(str(kind), int(ranks)) * run.bytes[large] / run.time_us[large] / 1e3
        path = "one_way" if kind in ONE_WAY else path_of(int(ranks), peer)
        found.setdefault((machine, path), []).append(float(np.median(rate)) / gbps)


def path_of(ranks: int, peer: bool) -> str:
    return "staged" if not peer else "peer_pair" if ranks <= 2 else "peer"


def shares(reached: Iterable[Reached], without: str = "") -> dict[str, float]:
    """The median over machines by path."""
    by_path: dict[str, list[float]] = {}
    for one in reached:
        if one.machine != without:
            by_path.setdefault(one.path, []).append(one.share)
    return {path: round(float(np.median(each)), 2) for path, each in by_path.items()}
