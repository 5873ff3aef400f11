"""Where learned factors come from: the runs, and how sure each factor is.

The factors themselves are `conditions.Learned`, and act on every job. `prediction.learn` finds both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.inputs import number, whole
from stepsight.platform.conditions import Learned, read_learned
from stepsight.records import section
from stepsight.terminal import counted

GEMM, ATTENTION, MEMORY_BOUND, EMBEDDING = "gemm", "attention", "memory_bound", "embedding"
HOST, LINK, NETWORK = "host", "link", "network"
DISTANCE, TENSOR = "network_per_doubling", "network_tensor"
PARTS = (GEMM, ATTENTION, MEMORY_BOUND, EMBEDDING, HOST, LINK, NETWORK, DISTANCE, TENSOR)
"""Parts of a machine that runs can teach about, in the order of a covariance."""
WHOLE_STEP = PARTS[: PARTS.index(DISTANCE)]
"""Parts whose factors together scale the whole step."""
WORDS = {
    GEMM: "GEMMs and convolutions", ATTENTION: "attention", MEMORY_BOUND: "memory-bound kernels",
    EMBEDDING: "embedding lookups", HOST: "host work", LINK: "link inside a node",
    NETWORK: "network between nodes", DISTANCE: "network, per doubling of nodes",
    TENSOR: "network, tensor-parallel groups",
}  # fmt: skip
FIELDS = (
    "runs",
    "source",
    "left_out",
    "recipe",
    "probability",
    "unexplained",
    "shared",
    "covariance",
    "jobs",
    "others",
)
WHOLE = 0.0005
"""Factors this close to one are not written."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that was learned from. ``residual``: ln(measured / predicted with the factors); ``spread``: that
    of its prediction without learning; ``at``: its place among other jobs (`learn.regression.place`)."""

    name: str
    residual: float
    spread: float
    at: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """``covariance`` of the logarithms of the factors, in the order of `PARTS`. As shares of a prediction's
    own spread: ``shared``, what no factor explains and jobs that resemble each other have in common, and
    ``unexplained``, the scatter of single runs. ``beyond``: what this job takes because of ``jobs`` that
    resemble it, as a multiple of what the factors say. ``recipe``: the training stack that the runs look
    like, of jobs that name none (empty: the usual one), ``probability`` how sure that is, and ``others`` what
    the runs say under other recipes.
    """

    covariance: tuple[tuple[float, ...], ...]
    unexplained: float
    runs: int
    source: str = ""
    left_out: tuple[str, ...] = ()
    shared: float = 0.0
    jobs: tuple[KnownJob, ...] = ()
    beyond: float = 1.0
    recipe: str = ""
    probability: float = 1.0
    others: tuple[tuple[Learned, Evidence], ...] = ()

    @classmethod
    def none(cls) -> Evidence:
        """No runs: the machine as described, and the prediction's own spread."""
        return cls(((0.0,) * len(PARTS),) * len(PARTS), 1.0, 0)

    @property
    def matrix(self) -> FloatArray:
        return np.array(self.covariance, dtype=float)

    def spread(self, part: str) -> float:
        """How far the logarithm of a part's factor may be off."""
        i = PARTS.index(part)
        return math.sqrt(max(self.covariance[i][i], 0.0))

    def of_job(self, slopes: FloatArray, own: float, at: FloatArray) -> tuple[float, float]:
        """ln(step / predicted with the factors) of a job with these elasticities at this place, whose
        prediction states the spread ``own`` without learning; and the spread that remains."""
        variance = float(slopes @ self.matrix @ slopes) + own**2 * (self.shared**2 + self.unexplained**2)
        if not self.jobs:
            return 0.0, math.sqrt(max(variance, 0.0))
        places, spreads = np.array([job.at for job in self.jobs]), np.array([job.spread for job in self.jobs])
        near = np.exp(-np.abs(places[:, None] - places[None]).sum(axis=2))
        k = np.outer(spreads, spreads) * (self.shared**2 * near + self.unexplained**2 * np.eye(len(spreads)))
        here = self.shared**2 * own * spreads * np.exp(-np.abs(places - at).sum(axis=1))
        weights = np.linalg.solve(k, here)
        shift = float(weights @ [job.residual for job in self.jobs])
        return shift, math.sqrt(max(variance - float(weights @ here), 0.0))


def note(learned: Learned, evidence: Evidence) -> str:
    """One line for every answer on such a platform."""
    factors = {WORDS[p]: getattr(learned, p) / (evidence.beyond if p in WHOLE_STEP else 1.0) for p in PARTS}
    factors["jobs like this"] = evidence.beyond
    moved = [f"{word} ×{factor:.2f}" for word, factor in factors.items() if abs(factor - 1) >= 0.005]
    runs = counted(evidence.runs, "run")
    source = f" ({evidence.source})" if evidence.source else ""
    recipe = (
        evidence.recipe and f"; recipe {evidence.recipe} ({evidence.probability:.0%}) where none is named"
    )
    return f"learned from {runs}{source}: {', '.join(moved) or 'no change'}{recipe}"


def read_evidence(given: Any, where: str) -> Evidence:
    """``[learned_from]`` of a platform file."""
    given = section(given, FIELDS, where)
    left_out = given.get("left_out", [])
    if not isinstance(left_out, list) or not all(isinstance(one, str) for one in left_out):
        raise InputError(f"{where}.left_out", f"is {left_out!r}", "a list of texts")
    runs = whole(given.get("runs", 0), f"{where}.runs", least=0)
    share = number(given.get("unexplained", 1.0), f"{where}.unexplained", least=1e-6)
    covariance = _covariance(given.get("covariance", {}), f"{where}.covariance")
    shared = number(given.get("shared", 0.0), f"{where}.shared", least=0.0)
    jobs = _jobs(given.get("jobs", []), f"{where}.jobs")
    source, recipe = str(given.get("source", "")), str(given.get("recipe", ""))
    probability = number(given.get("probability", 1.0), f"{where}.probability", least=1e-6, most=1.0)
    listed = given.get("others", [])
    if not isinstance(listed, list):
        raise InputError(f"{where}.others", f"is {listed!r}", "a list of tables")
    others = [_other(one, f"{where}.others[{i}]") for i, one in enumerate(listed)]
    return Evidence(
        covariance, share, runs, source, tuple(left_out), shared, jobs, recipe=recipe,
        probability=probability, others=tuple(others),
    )  # fmt: skip


def _other(given: Any, where: str) -> tuple[Learned, Evidence]:
    """What the runs say under another recipe."""
    table = dict(section(given, (*(name for name in FIELDS if name != "others"), "factors"), where))
    return read_learned(table.pop("factors", {}), f"{where}.factors"), read_evidence(table, where)


def _jobs(given: Any, where: str) -> tuple[KnownJob, ...]:
    """The jobs that were learned from, all placed in the same space."""
    try:
        jobs = msgspec.convert(given, tuple[KnownJob, ...])
    except msgspec.ValidationError as error:
        raise InputError(where, str(error), "learn it again") from None
    for i, job in enumerate(jobs):
        numbers = (job.residual, job.spread, *job.at)
        if len(job.at) != len(PARTS) + 3 or not all(map(math.isfinite, numbers)) or job.spread <= 0:
            raise InputError(f"{where}[{i}]", f"is no place of {len(PARTS) + 3} numbers", "learn it again")
    return jobs


def _covariance(given: Any, where: str) -> tuple[tuple[float, ...], ...]:
    """A row for each part; parts without one are exact."""
    table, numbers = np.zeros((len(PARTS), len(PARTS))), f"{len(PARTS)} numbers: {', '.join(PARTS)}"
    for name, row in section(given, PARTS, where).items():
        if not isinstance(row, list) or len(row) != len(PARTS):
            raise InputError(f"{where}.{name}", f"is {row!r}", numbers)
        table[PARTS.index(name)] = [number(value, f"{where}.{name}", fix=numbers) for value in row]
    if not np.allclose(table, table.T, atol=1e-6) or np.linalg.eigvalsh(table).min() < -1e-6:
        raise InputError(where, "is not a covariance: symmetric, no negative variance", "learn it again")
    return tuple(tuple(float(v) for v in row) for row in table)


def learned_text(learned: Learned, evidence: Evidence, based_on: str, name: str) -> str:
    """A platform file that holds what was learned, on top of the platform that it was learned on."""
    lines = [
        "# Made by `stepsight calibrate --runs`. Edit as you like; predict with -p and the path of the file.",
        f"name = {_quoted(name)}",
        f"based_on = {_quoted(based_on)}",
        "",
        "[learned]                       # takes this many times as long as predicted without runs",
    ]
    for part in PARTS:
        if abs(getattr(learned, part) - 1) > WHOLE:
            value = f"{part} = {getattr(learned, part):.4f}"
            lines.append(f"{value:32s}# ± {100 * math.expm1(evidence.spread(part)):.0f} %: {WORDS[part]}")
    if abs(learned.memory - 1) > WHOLE:
        lines.append(f"memory = {learned.memory:.4f}                 # measured ÷ predicted peak memory")
    lines += [
        "",
        "[learned_from]",
        f"runs = {evidence.runs}",
        f"source = {_quoted(evidence.source)}",
        f"left_out = [{', '.join(_quoted(one) for one in evidence.left_out)}]",
        *_evidence_lines(evidence, "learned_from"),
    ]
    for other, its in evidence.others:
        factors = ", ".join(f"{p} = {getattr(other, p):.4f}" for p in PARTS if getattr(other, p) != 1)
        lines += ["", "[[learned_from.others]]", f"factors = {{ {factors} }}"]
        lines += _evidence_lines(its, "learned_from.others")
    return "\n".join(lines) + "\n"


def _evidence_lines(evidence: Evidence, table: str) -> list[str]:
    lines = []
    if evidence.probability < 1 or evidence.recipe:
        lines += [
            f"recipe = {_quoted(evidence.recipe)}          # of jobs that name none; empty: the usual one",
            f"probability = {evidence.probability:.4f}",
        ]
    lines += [
        f"unexplained = {evidence.unexplained:.4f}            # of a prediction's own spread, by run",
        f"shared = {evidence.shared:.4f}                 # the same, by jobs that resemble each other",
        "# residual: ln(measured / predicted with the factors); at: what each part takes by itself, and the",
        "# logarithms of step, ranks, peak and bandwidth; jobs resemble each other over a distance of one",
        "jobs = [",
        *(
            f"  {{ name = {_quoted(job.name)}, residual = {job.residual:.4f}, spread = {job.spread:.4f},"
            f" at = [{', '.join(f'{v:.3f}' for v in job.at)}] }},"
            for job in evidence.jobs
        ),
        "]",
        "",
        f"[{table}.covariance]       # of the logarithms of the factors, in the order of these rows",
    ]
    rows = zip(PARTS, evidence.covariance, strict=True)
    return lines + [f"{part} = [{', '.join(f'{v:.3e}' for v in row)}]" for part, row in rows]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
