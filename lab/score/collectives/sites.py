"""Collectives over nodes from other sources alone, and from a cluster's own bandwidth at one size.

Works on the shipped catalogue: all machines of a source are taken out, and each of its curves over nodes is
predicted, small messages included. For clusters measured on three numbers of nodes or more, the bandwidth of
one large message is then stated, as a user's ``[site]`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt

from lab.score.collectives.transfers import platform_of
from stepsight.collectives.measured import Catalogue, MeasuredSystem, load_catalogue
from stepsight.collectives.models import CollectiveModels
from stepsight.collectives.pricing import Pricing, by_nodes, price
from stepsight.collectives.roofline import GroupShape, bus_factor, group_shape
from stepsight.collectives.site import SiteBandwidth, SiteCollectives
from stepsight.estimate import Estimates, FloatArray
from stepsight.hardware.spec import PlatformSpec
from stepsight.score import BLIND, Score, gmae, mape

KINDS = ("all_reduce", "all_gather", "all_to_all")
BANDS = {
    "up to 1 MiB": (0.0, 2.0**20), "1 – 64 MiB": (2.0**20, 2.0**26), "64 MiB and more": (2.0**26, np.inf),
}  # fmt: skip
STATED_BYTES = 256e6
FEWEST_COUNTS = 3
Errors = dict[tuple[str, str], list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class OtherSources:
    """The models of a machine, without any curve of its source."""

    platform: PlatformSpec
    catalogue: Catalogue
    provenance: str

    def estimate(self, kind: str, bytes: npt.ArrayLike, ranks: Sequence[int]) -> Estimates:
        """As `CollectiveModels.estimate`."""
        priced = self._price(kind, group_shape(ranks, self.platform))
        return priced.estimate(np.atleast_1d(np.asarray(bytes, dtype=np.float64)))

    def _price(self, kind: str, shape: GroupShape) -> Pricing:
        rest = [s for s in self.catalogue.systems if not s.nic_gbps or s.provenance != self.provenance]
        found = price(kind, shape, self.platform, rest, self.catalogue.rank_transfer)
        return by_nodes(kind, shape, found, partial(self._price, kind))


def site_scores() -> list[Score]:
    """One line per collective and band of sizes, without and with the cluster's figures."""
    without: Errors = {}
    stated: Errors = {}
    catalogue = load_catalogue()
    for system in catalogue.systems:
        for kind in KINDS:
            for shapes in _groups(system, kind):
                models = _models(system, catalogue, shapes)
                for name, of in ((without, models), (stated, _with_figures(system, kind, shapes, models))):
                    if of is not None:
                        _add(name, system, kind, shapes, of)
    lines = (("over nodes, source left out", without), ("a cluster's own bandwidth at one size", stated))
    used = "catalogue's curves over nodes; median over curves"
    return [
        Score(
            "collectives", f"{name}: {kind} {band}", len(found), float(np.median([g for g, _ in found])),
            float(np.median([m for _, m in found])), used, exposure=BLIND, kind=name,
        )
        for name, errors in lines
        for (kind, band), found in sorted(errors.items())
    ]  # fmt: skip


def _groups(system: MeasuredSystem, kind: str) -> Iterator[list[GroupShape]]:
    """The groups over nodes that were measured, by the GPUs of a node that take part."""
    shapes = [s for name, s in system.curves if name == kind and not s.inside_a_node]
    for per_node in sorted({s.per_node for s in shapes}):
        yield sorted((s for s in shapes if s.per_node == per_node), key=lambda s: s.nodes)


def _models(system: MeasuredSystem, catalogue: Catalogue, shapes: list[GroupShape]) -> OtherSources:
    size = replace(platform_of(system), gpus_per_node=shapes[0].per_node, nodes=shapes[-1].nodes)
    return OtherSources(size, catalogue, system.provenance)


def _with_figures(
    system: MeasuredSystem, kind: str, shapes: list[GroupShape], models: OtherSources
) -> SiteCollectives | None:
    if len(shapes) < FEWEST_COUNTS:
        return None
    curves = {shape: system.curves[kind, shape] for shape in shapes}
    size = min(STATED_BYTES, *(curve.range_bytes[1] for curve in curves.values()))
    gbps = {
        s.nodes: bus_factor(kind, s.ranks) * size / float(c.time_us(size)) / 1e3 for s, c in curves.items()
    }
    return SiteCollectives(cast(CollectiveModels, models), SiteBandwidth(size, {kind: gbps}))


def _add(
    errors: Errors, system: MeasuredSystem, kind: str, shapes: list[GroupShape],
    models: OtherSources | SiteCollectives,
) -> None:  # fmt: skip
    for shape in shapes:
        curve = system.curves[kind, shape]
        for band, (low, high) in BANDS.items():
            sizes: FloatArray = curve.sizes[(curve.sizes >= low) & (curve.sizes < high)]
            if len(sizes):
                predicted = models.estimate(kind, sizes, range(shape.ranks)).time_us
                measured = curve.time_us(sizes)
                errors.setdefault((kind, band), []).append(
                    (gmae(predicted, measured), mape(predicted, measured))
                )
