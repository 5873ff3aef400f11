"""Measured machines: curves by collective, group size and nodes, with what they were measured on.

The catalogue ships such machines as ``catalogue/curves.json``; a user's platform folder is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepsight.collectives.curve import Curve
from stepsight.collectives.roofline import GroupShape
from stepsight.estimate import FloatArray

CATALOGUE = Path(__file__).parent / "catalogue" / "curves.json"


@dataclass(frozen=True, slots=True)
class MeasuredSystem:
    """One machine and its curves, by kind and shape of the group.

    ``link_gbps`` and ``nic_gbps`` are GB/s per GPU, one direction; ``gpus`` are prefixes of the
    GPU names that it stands for. ``provenance`` names the sources, ``forced`` curves were
    measured with the algorithm pinned, ``own`` is the user's own platform and software.
    """

    name: str
    gpus: tuple[str, ...]
    link: str
    link_gbps: float
    nic: str
    nic_gbps: float
    curves: Mapping[tuple[str, GroupShape], Curve]
    provenance: str = ""
    forced: frozenset[tuple[str, GroupShape]] = frozenset()
    own: bool = False

    def is_gpu(self, name: str) -> bool:
        return any(name.startswith(prefix) for prefix in self.gpus)


@dataclass(frozen=True, slots=True, eq=False)
class RankTransfer:
    """What doubling a group does to a collective inside a node, beyond its bytes per link.

    By kind and starting size (2 → 4, 4 → 8), ln(time ratio) over where on its curve the
    message lies: log2 of its bandwidth time over the latency floor.
    """

    positions: FloatArray
    ln_ratio: Mapping[tuple[str, int], FloatArray]

    def doubling(self, kind: str, ranks: int, position: FloatArray) -> FloatArray:
        """ln(time of 2·ranks / time of ranks) at equal bytes per link; other kinds use all_gather's."""
        steps = [start for name, start in self.ln_ratio if name == kind]
        known = kind if steps else "all_gather"
        start = min((s for name, s in self.ln_ratio if name == known), key=lambda s: abs(s - ranks))
        return np.interp(position, self.positions, self.ln_ratio[known, start])


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All measured machines, and how their curves carry to other group sizes."""

    systems: tuple[MeasuredSystem, ...]
    rank_transfer: RankTransfer
    provenance: str = field(default="")


@lru_cache(maxsize=1)
def load_catalogue() -> Catalogue:
    """The shipped machines."""
    return catalogue_from_record(msgspec.json.decode(CATALOGUE.read_bytes()))


def catalogue_from_record(record: Mapping[str, Any]) -> Catalogue:
    transfer = record["rank_transfer"]
    ratios = {
        (entry["kind"], int(entry["ranks"])): np.array(entry["ln_ratio"], dtype=np.float64)
        for entry in transfer["doublings"]
    }
    return Catalogue(
        tuple(_system(entry) for entry in record["systems"]),
        RankTransfer(np.array(transfer["positions"], dtype=np.float64), ratios),
        str(record.get("provenance", "")),
    )


def _system(entry: Mapping[str, Any]) -> MeasuredSystem:
    curves: dict[tuple[str, GroupShape], Curve] = {}
    forced = set()
    for curve in entry["curves"]:
        ranks, nodes = int(curve["ranks"]), int(curve["nodes"])
        key = (str(curve["kind"]), GroupShape(ranks, nodes, -(-ranks // nodes)))
        curves[key] = Curve.from_record(curve)
        if curve.get("forced"):
            forced.add(key)
    return MeasuredSystem(
        name=entry["name"],
        gpus=tuple(entry["gpus"]),
        link=entry["link"],
        link_gbps=float(entry["link_gbps"]),
        nic=entry.get("nic", ""),
        nic_gbps=float(entry.get("nic_gbps", 0.0)),
        curves=curves,
        provenance=entry["provenance"],
        forced=frozenset(forced),
    )
