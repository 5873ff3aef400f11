"""How far a collective's time can be carried: every measured curve from what is left without it.

Works on the shipped catalogue alone. A curve is taken out (with its kind, its group size or its
whole machine) and predicted from the rest; these errors are the spreads that answers carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fit.collectives.pcie import reached_shares, shares
from stepsight.collectives.measured import Catalogue, MeasuredSystem, load_catalogue
from stepsight.collectives.pricing import price
from stepsight.collectives.roofline import GroupShape
from stepsight.hardware.spec import GpuSpec, HostSpec, LinkSpec, PlatformSpec
from stepsight.score import BLIND, Score, gmae, mape

Key = tuple[str, GroupShape]
LEAST_BYTES = 2.0**20
"""Below, times are the software stack's latency, which no other machine can tell."""


def transfer_scores() -> list[Score]:
    """One line per kind of transfer: the median over curves of the error above 1 MiB."""
    catalogue = load_catalogue()
    lines = (
        ("from other kinds, one node", _in_node, lambda key, other: other[0] == key[0]),
        ("from other group sizes, NVSwitch", _on("nvswitch"), lambda key, other: other[1] == key[1]),
        ("from other group sizes, PCIe and mesh", _on("pcie", "nvlink_mesh"), lambda k, o: o[1] == k[1]),
        ("from other machines, one node", _in_node, lambda key, other: True),
        ("from other node counts, same machine", _over_nodes, lambda key, other: other[1] == key[1]),
        ("from other machines, several nodes", _over_nodes, lambda key, other: True),
    )
    found = []
    for name, wanted, removed in lines:
        errors = np.array(list(_errors(catalogue, wanted, removed)))
        if len(errors):
            g, m = np.median(errors, axis=0)
            used = "catalogue's curves at ≥ 1 MiB from the rest of the catalogue; median over curves"
            found.append(Score("collectives", name, len(errors), float(g), float(m), used, exposure=BLIND))
    return found


def pcie_score(data: Path) -> Score:
    """Bandwidth of large messages over PCIe: every machine by the paths of the others."""
    reached = reached_shares(data)
    pairs = [(one.share, shares(reached, one.machine).get(one.path)) for one in reached]
    times = np.array([(1 / other, 1 / own) for own, other in pairs if other]).T
    used = "machine left out; large messages by path (peers, staged, one way)"
    return Score(
        "collectives", "bandwidth over PCIe", len(times[0]), gmae(*times), mape(*times), used, exposure=BLIND
    )


def _errors(
    catalogue: Catalogue,
    wanted: Callable[[MeasuredSystem, Key], bool],
    removed: Callable[[Key, Key], bool],
) -> Iterator[tuple[float, float]]:
    for system in catalogue.systems:
        platform = platform_of(system)
        for key, curve in system.curves.items():
            sizes = curve.sizes[curve.sizes >= LEAST_BYTES]
            if not wanted(system, key) or not len(sizes):
                continue
            kept = {other: c for other, c in system.curves.items() if not removed(key, other)}
            if not kept and not removed(key, ("", GroupShape(0, 0, 0))):
                continue  # nothing of this machine is left to carry from
            mine = replace(system, curves=kept, own=bool(kept))
            rest = tuple(mine if s is system else s for s in catalogue.systems)
            carried = price(*key, platform, rest, catalogue.rank_transfer).time_us(sizes)
            yield gmae(carried, curve.time_us(sizes)), mape(carried, curve.time_us(sizes))


def _in_node(system: MeasuredSystem, key: Key) -> bool:
    return key[1].inside_a_node and key not in system.forced


def _over_nodes(system: MeasuredSystem, key: Key) -> bool:
    return not key[1].inside_a_node


def _on(*links: str) -> Callable[[MeasuredSystem, Key], bool]:
    return lambda system, key: system.link in links and _in_node(system, key)


def platform_of(system: MeasuredSystem) -> PlatformSpec:
    """The measured machine as a platform; only its names and links matter here."""
    gpu = GpuSpec(system.gpus[0], "", "", 1, 1.0, 1.0, 1.0, 1.0, 1.0, {"fp32": 1.0}, 12.0)
    nic = LinkSpec(system.nic, system.nic_gbps, 5.0) if system.nic_gbps else None
    link = LinkSpec(system.link, system.link_gbps, 5.0)
    return PlatformSpec(system.name, gpu, 8, 512, link, nic, HostSpec("any"))
