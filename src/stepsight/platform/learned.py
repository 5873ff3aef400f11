"""What a cluster's own runs taught: factors on the parts of a step, and how sure they are.

A part is a kind of work that one property of a machine makes faster or slower: tensor-core kernels (clocks),
memory-bound kernels, the host, the link inside a node, the network between nodes. A factor of 1.2 means: takes
1.2 times as long as predicted for a machine that nobody measured. `prediction.learn` finds the factors;
pricing applies them to every job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.records import nearest

GEMM, ATTENTION, MEMORY_BOUND, EMBEDDING = "gemm", "attention", "memory_bound", "embedding"
HOST, LINK, NETWORK, DISTANCE = "host", "link", "network", "network_per_doubling"
PARTS = (GEMM, ATTENTION, MEMORY_BOUND, EMBEDDING, HOST, LINK, NETWORK, DISTANCE)
"""``network`` is the factor between two nodes, ``network_per_doubling`` what every doubling of the nodes adds."""
WORDS = {
    GEMM: "tensor-core kernels", ATTENTION: "attention", MEMORY_BOUND: "memory-bound kernels",
    EMBEDDING: "embedding lookups", HOST: "host work", LINK: "link inside a node",
    NETWORK: "network between nodes", DISTANCE: "network, per doubling of nodes",
}  # fmt: skip
_OF_CATEGORY = {"gemm": GEMM, "conv": GEMM, "attention": ATTENTION, "embedding": EMBEDDING}
FIELDS = ("runs", "unexplained", "source", "left_out", "memory", "factors", "covariance")


def part_of(category: str) -> str:
    """The part that kernels of a category belong to; what is not listed moves bytes."""
    return _OF_CATEGORY.get(category, MEMORY_BOUND)


def network_weights(nodes: float) -> dict[str, float]:
    """How the logarithm of a collective's time depends on the parts, by the nodes that its group spans."""
    if nodes <= 1:
        return {LINK: 1.0}
    return {NETWORK: 1.0, DISTANCE: math.log2(nodes) - 1.0} if nodes > 2 else {NETWORK: 1.0}


def collective_factor(factors: Mapping[str, float], nodes: float) -> float:
    """The factor of a collective whose group spans this many nodes."""
    return math.prod(factors.get(part, 1.0) ** power for part, power in network_weights(nodes).items())


@dataclass(frozen=True, slots=True)
class Learned:
    """Factors by part, the covariance of their logarithms (in the order of `PARTS`), and ``unexplained``, the
    standard deviation of ln(measured / predicted) that no part explains."""

    factors: Mapping[str, float]
    covariance: tuple[tuple[float, ...], ...]
    unexplained: float
    runs: int
    source: str = ""
    left_out: tuple[str, ...] = ()
    memory: float = 1.0

    def kernel(self, category: str) -> float:
        """The factor of kernels of a category."""
        return self.factors.get(part_of(category), 1.0)

    def collective(self, nodes: float) -> float:
        return collective_factor(self.factors, nodes)

    @property
    def host(self) -> float:
        return self.factors.get(HOST, 1.0)

    @property
    def matrix(self) -> FloatArray:
        return np.array(self.covariance, dtype=float)

    def spread(self, part: str) -> float:
        """How far the logarithm of a part's factor may be off."""
        i = PARTS.index(part)
        return math.sqrt(max(self.covariance[i][i], 0.0))

    def step_spread(self, elasticities: Mapping[str, float]) -> float:
        """The spread of a step whose time depends in this way on the parts."""
        e = np.array([elasticities.get(part, 0.0) for part in PARTS])
        return math.sqrt(max(float(e @ self.matrix @ e), 0.0) + self.unexplained**2)

    def note(self) -> str:
        """One line for every answer that uses it."""
        moved = [f"{WORDS[p]} ×{f:.2f}" for p, f in self.factors.items() if abs(f - 1) >= 0.005]
        runs = f"{self.runs} run{'s' if self.runs != 1 else ''}"
        return f"learned from {runs}{f' ({self.source})' if self.source else ''}: {', '.join(moved) or 'no change'}"


def read_learned(given: Any, where: str) -> Learned:
    """``[learned]`` of a platform file."""
    if not isinstance(given, dict):
        raise InputError(where, f"must be a table, not {given!r}", "write it as [learned]")
    for key in given:
        if key not in FIELDS:
            raise InputError(f"{where}.{key}", "unknown key", nearest(key, FIELDS))
    factors = given.get("factors")
    if not isinstance(factors, dict):
        raise InputError(f"{where}.factors", "is missing", "for example factors = { host = 1.2 }")
    found = {name: _positive(value, f"{where}.factors.{name}") for name, value in factors.items()}
    for name in found:
        if name not in PARTS:
            raise InputError(f"{where}.factors.{name}", "unknown part", nearest(name, PARTS))
    left_out = given.get("left_out", [])
    if not isinstance(left_out, list) or not all(isinstance(one, str) for one in left_out):
        raise InputError(f"{where}.left_out", f"is {left_out!r}", "a list of texts")
    runs = given.get("runs", 0)
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 0:
        raise InputError(f"{where}.runs", f"is {runs!r}", "how many runs it was learned from")
    return Learned(
        {part: found.get(part, 1.0) for part in PARTS},
        _covariance(given.get("covariance", {}), f"{where}.covariance"),
        _positive(given.get("unexplained", 0.08), f"{where}.unexplained"),
        runs,
        str(given.get("source", "")),
        tuple(left_out),
        _positive(given.get("memory", 1.0), f"{where}.memory"),
    )


def _covariance(given: Any, where: str) -> tuple[tuple[float, ...], ...]:
    """A row for each part; parts without one are exact."""
    if not isinstance(given, dict):
        raise InputError(where, f"is {given!r}", "a row of numbers for each part")
    table = np.zeros((len(PARTS), len(PARTS)))
    for name, row in given.items():
        if name not in PARTS:
            raise InputError(f"{where}.{name}", "unknown part", nearest(name, PARTS))
        if (
            not isinstance(row, list)
            or len(row) != len(PARTS)
            or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in row)
        ):
            raise InputError(f"{where}.{name}", f"is {row!r}", f"{len(PARTS)} numbers: {', '.join(PARTS)}")
        table[PARTS.index(name)] = row
    if not np.allclose(table, table.T, atol=1e-6) or np.linalg.eigvalsh(table).min() < -1e-6:
        raise InputError(where, "is not a covariance: symmetric, no negative variance", "learn it again")
    return tuple(tuple(float(v) for v in row) for row in table)


def _positive(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InputError(where, f"is {value!r}", "give a positive number")
    return float(value)


def learned_text(learned: Learned, based_on: str, name: str) -> str:
    """A platform file that holds what was learned, on top of the platform that it was learned on."""
    lines = [
        "# Learned by `stepsight calibrate --runs`; edit as you like, predict with -p and this file's path.",
        f'name = "{name}"',
        f'based_on = "{based_on}"',
        "",
        "[learned]",
        f"runs = {learned.runs}",
        f'source = "{learned.source}"',
        f"unexplained = {learned.unexplained:.4f}             # of ln(measured / predicted), beyond the parts",
        f"memory = {learned.memory:.4f}                 # measured ÷ predicted peak memory",
        f"left_out = [{', '.join(_quoted(one) for one in learned.left_out)}]",
        "",
        "[learned.factors]               # takes this many times as long as predicted without them",
    ]
    for part in PARTS:
        value = f"{part} = {learned.factors.get(part, 1.0):.4f}"
        lines.append(f"{value:32s}# ± {math.expm1(learned.spread(part)):.0%}: {WORDS[part]}")
    lines += [
        "",
        f"[learned.covariance]            # of the factors' logarithms, in this order: {', '.join(PARTS)}",
    ]
    for part, row in zip(PARTS, learned.covariance, strict=True):
        lines.append(f"{part} = [{', '.join(f'{v:.3e}' for v in row)}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
