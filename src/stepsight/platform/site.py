"""A cluster's measured bandwidth over nodes, as a platform file states it."""

from __future__ import annotations

import math
from typing import Any

from stepsight.collectives.site import SiteBandwidth
from stepsight.errors import InputError
from stepsight.program.job import COLLECTIVE_KINDS
from stepsight.records import nearest

AXES = ("tensor", "context", "expert", "data", "shard", "copies", "expert data", "world")
FIELDS = ("bytes", "gbps", "hop_us", "axes")


def read_site(given: Any, where: str) -> SiteBandwidth:
    """``[site]``: bus bandwidth in GB/s of one message by kind and number of nodes.

    ``bytes`` (default 256 MB), ``gbps.all_gather = { 2 = 185, 4 = 119 }``, ``hop_us`` (a further node's
    latency), ``axes`` (of parallelism that it holds for; all by default).
    """
    if not isinstance(given, dict):
        raise InputError(where, f"must be a table, not {given!r}", "write it as [site]")
    for key in given:
        if key not in FIELDS:
            raise InputError(f"{where}.{key}", "unknown key", nearest(key, FIELDS))
    rates = given.get("gbps")
    if not isinstance(rates, dict) or not rates:
        raise InputError(f"{where}.gbps", "is missing", "for example gbps.all_reduce = { 2 = 185, 4 = 119 }")
    axes = given.get("axes", [])
    if not isinstance(axes, list) or any(axis not in AXES for axis in axes):
        raise InputError(f"{where}.axes", f"is {axes!r}", f"a list of {', '.join(AXES)}")
    return SiteBandwidth(
        _above_zero(given.get("bytes", 256e6), f"{where}.bytes"),
        {kind: _by_nodes(kind, each, f"{where}.gbps") for kind, each in rates.items()},
        hop_us=_above_zero(given["hop_us"], f"{where}.hop_us") if "hop_us" in given else 0.0,
        axes=tuple(axes),
    )


def _by_nodes(kind: str, given: Any, where: str) -> dict[int, float]:
    if kind not in COLLECTIVE_KINDS:
        raise InputError(f"{where}.{kind}", "unknown collective", nearest(kind, COLLECTIVE_KINDS))
    if not isinstance(given, dict) or not given:
        raise InputError(
            f"{where}.{kind}", f"is {given!r}", "bandwidth by nodes, such as { 2 = 185, 4 = 119 }"
        )
    found = {}
    for nodes, rate in given.items():
        if not str(nodes).isdigit() or int(nodes) < 2:
            raise InputError(f"{where}.{kind}.{nodes}", "is not a number of nodes", "use 2 or more")
        found[int(nodes)] = _above_zero(rate, f"{where}.{kind}.{nodes}")
    return found


def _above_zero(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InputError(where, f"is {value!r}", "give a positive number")
    return float(value)
