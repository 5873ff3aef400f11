"""Which measured curves can speak for a collective on a platform, and how near each one is.

Every candidate is already carried to the wanted group; ``distance`` orders them, ``source``,
``spread`` and ``note`` say what an answer from it is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from stepsight.collectives.curve import Curve
from stepsight.collectives.extrapolate import (
    GATHER_LIKE,
    KIND_SUMS,
    RINGS,
    OverNodes,
    between_ranks,
    bound_by_wire,
    stretched,
    to_kind,
    to_ranks,
)  # fmt: skip
from stepsight.collectives.measured import MeasuredSystem, RankTransfer
from stepsight.collectives.roofline import GroupShape, bus_factor, pcie_gbps
from stepsight.constants import area
from stepsight.estimate import Source
from stepsight.hardware.spec import PlatformSpec

C = area("collectives")
RANK_SPREAD = C.by_name("RANK_SPREAD")

LINK_FAMILY = {
    "nvswitch": "nvlink", "nvlink_mesh": "nvlink", "nvlink_pairs": "pairs", "xgmi": "xgmi", "pcie": "pcie",
}  # fmt: skip
SLOW_NETWORKS = ("ethernet",)
TRANSPORT = {"infiniband": "verbs", "roce": "verbs", "efa": "libfabric", "slingshot": "libfabric"}
"""How NCCL reaches a network: its own InfiniBand verbs, or a plugin over libfabric (aws-ofi-nccl)."""
PCIE_NOTE = "the bandwidth is that of a usual PCIe server; servers differ severalfold: import your nccl-tests"


@dataclass(frozen=True)
class CurveCandidate:
    """A curve for the wanted group, where it came from and how near that is.

    ``range_bytes`` are its smallest and largest size; ``carry`` makes it, which most candidates are never
    asked for.
    """

    carry: Callable[[], Curve]
    range_bytes: tuple[float, float]
    distance: float
    source: Source
    spread: float
    note: str
    own: bool = False

    @classmethod
    def of(
        cls, curve: Curve, distance: float, source: Source, spread: float, note: str, own: bool = False
    ) -> CurveCandidate:
        """One whose curve is there already."""
        return cls(lambda: curve, curve.range_bytes, distance, source, spread, note, own)

    @cached_property
    def curve(self) -> Curve:
        return self.carry()


def candidates(
    kind: str,
    shape: GroupShape,
    platform: PlatformSpec,
    systems: Sequence[MeasuredSystem],
    transfer: RankTransfer,
) -> list[CurveCandidate]:
    """All curves that may answer, nearest first; order among equals is that of the catalogue."""
    found: list[CurveCandidate] = []
    for system in systems:
        if shape.inside_a_node:
            found += _in_node(kind, shape, platform, system, transfer)
        elif system.nic_gbps > 0:
            found += _over_nodes(kind, shape, platform, system)
    if any(candidate.own for candidate in found):
        found = [c if c.own else replace(c, distance=c.distance + C.OTHER_STACK_STEP) for c in found]
    return sorted(found, key=lambda candidate: candidate.distance)


def _in_node(
    kind: str, shape: GroupShape, platform: PlatformSpec, system: MeasuredSystem, transfer: RankTransfer
) -> Iterator[CurveCandidate]:
    link = platform.link
    if LINK_FAMILY.get(link.kind, link.kind) != LINK_FAMILY.get(system.link, system.link) or link.gbps <= 0:
        return
    rate = system.link_gbps / link.gbps
    same_gpu = system.is_gpu(platform.gpu.name)
    same_link = link.kind == system.link and abs(rate - 1) <= C.SAME_LINK
    apart = abs(math.log2(rate)) + C.GPU_STEP * (not same_gpu) + C.LINK_STEP * (link.kind != system.link)
    rank_step = C.RANK_STEP if link.kind == "nvswitch" else C.HARD_RANK_STEP
    rank_spread = RANK_SPREAD.get(link.kind, C.OTHER_RANK_SPREAD)
    if kind == "send_recv":  # a pair's message does not ask how many other pairs there are
        rank_step, rank_spread = 0.1, RANK_SPREAD["nvswitch"]
    for curve, names, forced in _kind_curves(kind, system):
        for ranks, carried in _rank_curves(curve, kind, shape.ranks, transfer):
            doublings = 0.0 if ranks == 0 else abs(math.log2(shape.ranks / ranks))
            distance = apart + C.KIND_STEP * bool(names) + rank_step * doublings + C.FORCED_STEP * forced
            distance += 0.5 * (ranks == 0)
            if kind == "all_to_all" and names and link.kind == "nvlink_mesh":
                distance += C.MESH_EXCHANGE_STEP
            spread = math.hypot(
                C.RELATIVE_SPREAD * (not (same_gpu and same_link)), C.KIND_SPREAD * bool(names),
                rank_spread * (0.5 if ranks == 0 else doublings),
            )  # fmt: skip
            notes = _notes(names, forced)
            if ranks == 0:
                notes.append(f"interpolated in ranks to {shape.ranks}")
            elif doublings:
                notes.append(f"extrapolated from {ranks} to {shape.ranks} ranks (±{100 * rank_spread:.0f} %)")
            source = Source.LEARNED if names or doublings or ranks == 0 or forced else Source.MEASURED
            if link.kind == "pcie" and not system.own:
                # The path between slots is the server's: one machine does not speak for others.
                reached = bus_factor(kind, shape.ranks) * carried.sizes[-1] / carried.times_us[-1] / 1e3
                carried = stretched(carried, float(reached) / pcie_gbps(kind, shape.ranks, link))
                source, spread = Source.TRANSFERRED, math.hypot(spread, C.PCIE_SPREAD)
                notes.append(PCIE_NOTE)
            elif not (same_gpu and same_link):
                source = Source.TRANSFERRED
                carried = stretched(carried, rate)
                notes.append(f"curve of {system.name}, scaled by the link rates")
            yield CurveCandidate.of(carried, distance, source, spread, "; ".join(notes), system.own)


def _over_nodes(
    kind: str, shape: GroupShape, platform: PlatformSpec, system: MeasuredSystem
) -> Iterator[CurveCandidate]:
    nic = platform.nic
    if nic is None or nic.gbps <= 0:
        return
    rate = abs(math.log2(system.nic_gbps / nic.gbps))
    slow_network = nic.kind in SLOW_NETWORKS
    pair = kind == "send_recv" and shape.ranks == 2 and not slow_network
    slow = (system.nic in SLOW_NETWORKS) != slow_network
    same_transport = TRANSPORT.get(system.nic, system.nic) == TRANSPORT.get(nic.kind, nic.kind)
    same_gpu = system.is_gpu(platform.gpu.name)
    nearly = same_gpu and rate <= C.SAME_LINK and same_transport
    spread = C.NODE_SPREAD if nearly else C.OTHER_NODE_SPREAD
    apart = rate + C.GPU_STEP / 2 * (not same_gpu)
    # A gather's hops are as many as its ranks, so that whose hops they are matters more than how many.
    gathers = kind in GATHER_LIKE
    transport_step = C.GATHER_TRANSPORT_STEP if gathers else C.TRANSPORT_STEP
    apart += C.TCP_STEP if slow else transport_step * (not same_transport)
    for names in ((kind,), *KIND_SUMS.get(kind, ())):
        shapes = {s for name, s in system.curves if name == names[0] and not s.inside_a_node}
        for measured in sorted(shapes, key=lambda s: (s.ranks, s.nodes)):
            if not all((name, measured) in system.curves for name in names):
                continue
            if pair and (measured.ranks > 2 or names != (kind,)):
                continue  # a ring of pairs ends with the slowest, and groups share NICs
            own = names == (kind,)
            parts = tuple((name, system.curves[name, measured]) for name in names)
            curve = parts[0][1] if own else to_kind(parts, kind, measured)
            steps = abs(math.log2(shape.nodes / measured.nodes))
            steps += abs(math.log2(shape.per_node / measured.per_node))
            steps *= C.GATHER_NODE_STEP if gathers else 1.0
            exact = own and measured == shape and nearly and not slow
            kind_step = C.SIBLING_STEP if kind in RINGS and names[0] in RINGS else C.KIND_STEP
            distance = apart + steps + kind_step * (not own)
            notes = _notes(() if own else names, False)
            if exact:
                note = "; ".join(notes)
                yield CurveCandidate.of(curve, distance, Source.MEASURED, 0.0, note, system.own)
                continue
            # A machine that falls short of its NICs does so at every number of nodes.
            short = nearly and nic.kind == system.nic and not pair
            rdma = not slow_network and not short
            way = OverNodes(kind, measured, system.nic_gbps, shape, nic.gbps, rdma)
            notes.append(
                f"measured on {system.name} ({measured}), scaled to this group (±{100 * spread:.0f} %)"
            )
            found = CurveCandidate(
                partial(way.carried, curve),
                way.range_bytes(curve),
                distance,
                Source.TRANSFERRED,
                math.hypot(spread, C.KIND_SPREAD * (not own)),
                "; ".join(notes),
                system.own,
            )
            if own or not _other_algorithm(kind, names[0]):
                yield found
                continue
            wire_bound = bound_by_wire(curve, kind, measured, system.nic_gbps)
            if wire_bound is not None and kind != "all_to_all":
                carry, range_bytes = partial(way.carried, wire_bound), way.range_bytes(wire_bound)
                yield replace(found, carry=carry, range_bytes=range_bytes)
            yield replace(found, distance=distance + C.ALGORITHM_STEP)


def _other_algorithm(kind: str, stand_in: str) -> bool:
    """Whether NCCL sends a small message over nodes in another way: sums in a tree, gathers and scatters
    round a ring, exchanges from every rank to every other.

    What one takes then says nothing of the other, but for messages that NICs bound; an exchange loads these
    in another way, too.
    """
    if kind == "all_to_all":
        return stand_in != "send_recv"
    return kind in (*RINGS, "all_reduce") and (kind in RINGS) != (stand_in in RINGS)


def _kind_curves(
    kind: str, system: MeasuredSystem
) -> Iterator[tuple[dict[int, Curve], tuple[str, ...], bool]]:
    """Curves by ranks: the collective's own, then each stand-in's."""
    for names in ((kind,), *KIND_SUMS.get(kind, ())):
        for forced in (False, True):
            shapes = {
                s for name, s in system.curves
                if name == names[0] and s.inside_a_node
                and all((n, s) in system.curves for n in names)
                and any((n, s) in system.forced for n in names) == forced
            }  # fmt: skip
            if not shapes:
                continue
            if names == (kind,):
                yield {s.ranks: system.curves[kind, s] for s in shapes}, (), forced
            else:
                sums = {
                    s.ranks: to_kind(tuple((n, system.curves[n, s]) for n in names), kind, s) for s in shapes
                }
                yield sums, names, forced


def _rank_curves(
    curves: dict[int, Curve], kind: str, wanted: int, transfer: RankTransfer
) -> Iterator[tuple[int, Curve]]:
    """The group's own curve, one between two group sizes (named 0), and the nearest carried over."""
    below = max((ranks for ranks in curves if ranks < wanted), default=None)
    above = min((ranks for ranks in curves if ranks > wanted), default=None)
    if wanted in curves:
        yield wanted, curves[wanted]
    elif below and above:
        yield 0, between_ranks((below, curves[below]), (above, curves[above]), kind, wanted)
    for nearest in (below, above):
        if nearest:
            yield nearest, to_ranks(curves[nearest], kind, nearest, wanted, transfer)


def _summed(names: Sequence[str]) -> list[str]:
    return [f"2 × {names[0]}"] if len(names) > 1 and len(set(names)) == 1 else list(names)


def _notes(names: Sequence[str], forced: bool) -> list[str]:
    notes = [f"from {' + '.join(_summed(names))}"] if names else []
    return [*notes, "measured with the ring algorithm pinned"] if forced else notes
