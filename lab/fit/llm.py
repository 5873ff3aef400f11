"""``lab fit llm``: constants of whole steps, fitted on measured steps and again without each source.

Three kinds of constants cannot be had from kernels or collectives alone: what a framework's host needs for a
launch, the clock that a GPU keeps under hours of products, and what a site's network reaches. Every row is
priced once and its step composed for a grid of them; a fit then only interpolates, so that it can be repeated
without each source, whose left-out residuals are what intervals must hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from lab.datasets.folder import data_folder
from lab.datasets.llm.case import Case
from lab.datasets.llm.files import all_cases
from lab.score.llm.rows import platform_of
from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec
from stepsight.overheads.frameworks import HostProfile, profile_of
from stepsight.prediction.llm.answer import INTERVAL_SIGMAS, answered, spread_class, step_spread
from stepsight.prediction.llm.compose import Composer, Knobs
from stepsight.workload.files import parse_workload, resolve
from stepsight.workload.llm.recipe import recipe_of
from stepsight.workload.llm.workload import LanguageWorkload

USUAL_HOST_US = 14.0
"""Forward µs per launch where a framework's rows say nothing: plain PyTorch."""
EVERY = {"llm_h100_sweep": 3, "llm_a100_layouts": 3}
"""Of large sweeps, every n-th row is enough."""
BoolArray = npt.NDArray[np.bool_]
GRIDS = ((0.5, 1.0, 2.0), (0.8, 1.0, 1.25), (0.6, 1.0, 2.0))
"""Factors on the shipped constants (host, products, network) for which every row's step is composed."""
CANDIDATES = 61
"""Values that a fit tries for each constant, evenly in the logarithm over its grid."""
TURNS = 4
"""Times that every constant is fitted with the others held: then none moves by more than a candidate."""
PULL, WEAK_PULL = 0.2, 0.02
"""Mean |ln ratio| that a factor of e away from the usual constant must gain: it settles what rows do not.
Strong for a source's own clock and network, weak for hosts and a kind of GPU's clock over all sources."""
PULLS = (WEAK_PULL, PULL, PULL)
_LOGS = tuple(np.log(grid) for grid in GRIDS)
_CANDIDATES = tuple(np.linspace(logs[0], logs[-1], CANDIDATES) for logs in _LOGS)


@dataclass(frozen=True, slots=True)
class Constants:
    """Forward µs per launch by framework; by source, generation and type, its clock over the shipped
    one; by source, how many times as long as the catalogue says collectives over nodes take."""

    host_us: Mapping[str, float]
    clock: Mapping[str, float]
    network: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Surface:
    """A measured row: which constants it feels, ln(predicted / measured) over their grids, and the
    spread that its class ``kind`` stretches."""

    group: str
    source: str
    keys: tuple[str, str, str]
    log_ratio: FloatArray
    kind: str
    spread: float


def surface(case: Case) -> Surface | None:
    """A row over the grid; None where it cannot be expressed."""
    composer = _priced(case)
    if composer is None or case.measured_ms is None:
        return None
    host, products, network = GRIDS
    times = np.empty(tuple(len(grid) for grid in GRIDS))
    over_nodes = composer.c.ranks > composer.pricer.platform.spec.gpus_per_node
    for k, n in enumerate(network if over_nodes else (1.0,)):
        for i, h in enumerate(host):
            for j, p in enumerate(products):
                times[i, j, k] = composer.step(knobs=Knobs(h, p, n)).step_us
    if not over_nodes:
        times[:, :, 1:] = times[:, :, :1]
    ratio = np.log(times / (1e3 * case.measured_ms))
    found = answered(composer)
    c, platform = composer.c, composer.pricer.platform
    return Surface(
        f"{case.source} {case.group}", case.source, _keys(case, composer), ratio,
        spread_class(c, platform), step_spread(c, platform, found.spreads.values()),
    )  # fmt: skip


def _priced(case: Case) -> Composer | None:
    """A case's step, ready to be composed; None where it cannot be expressed."""
    try:
        platform = platform_of(case.platform, case.overrides, case.site)
        workload = resolve(
            parse_workload(case.document or {}, case.name), platform.spec.ranks, platform.spec.gpu
        )
        if not isinstance(workload, LanguageWorkload):
            return None
        return Composer(workload.config, platform.with_ranks(workload.ranks))
    except StepsightError:
        return None


def clock_key(source: str, gpu: GpuSpec, dtype: str) -> str:
    """Which clock a row feels: its site's, of that kind of GPU."""
    return f"{source} {gpu.architecture} {dtype}"


def _keys(case: Case, composer: Composer) -> tuple[str, str, str]:
    c, spec = composer.c, composer.pricer.platform.spec
    site = case.source if c.ranks > spec.gpus_per_node else ""
    return c.framework.name, clock_key(case.source, spec.gpu, c.training.product_dtype), site


class Fit:
    """The rows' surfaces as one array, and fits on some of them."""

    def __init__(self, rows: Sequence[Surface]) -> None:
        self.rows = rows
        self.ratio = np.array([r.log_ratio for r in rows])
        self.groups = np.array([r.group for r in rows])
        self.sources = np.array([r.source for r in rows])
        self.names = [sorted({r.keys[axis] for r in rows}) for axis in range(3)]
        kinds = {r.keys[1]: r.keys[1].removeprefix(f"{r.source} ") for r in rows}
        self.gpus = [kinds[name] for name in self.names[1]]
        self.code = [np.array([self.names[a].index(r.keys[a]) for r in rows]) for a in range(3)]
        _, inverse, sizes = np.unique(self.groups, return_inverse=True, return_counts=True)
        self.weights = 1 / np.sqrt(sizes[inverse])
        usual = [float(np.log(USUAL_HOST_US / _profile(k).forward_us)) for k in self.names[0]]
        self.usual = [np.array(usual), np.zeros(len(self.names[1])), np.zeros(len(self.names[2]))]

    def at(self, used: BoolArray) -> list[FloatArray]:
        """The constants, as logarithms of factors, with the least mean |ln ratio| over the rows used;
        groups weigh as the root of their rows. What no row tells is NaN."""
        found = [np.clip(u, logs[0], logs[-1]) for u, logs in zip(self.usual, _LOGS, strict=True)]
        usual = list(self.usual)
        for _ in range(TURNS):  # hosts, and clocks over all sources
            self._turn(0, used, found, usual)
            found[1] = usual[1] = self._by_gpu(used, found)
        found[1] = found[1].copy()
        for _ in range(TURNS):
            for axis in range(3):
                self._turn(axis, used, found, usual)
        for axis in range(3):
            seen = np.bincount(self.code[axis][used], minlength=len(self.names[axis])) > 0
            found[axis] = np.where(seen, found[axis], np.nan)
        return found

    def _turn(self, axis: int, used: BoolArray, found: list[FloatArray], usual: Sequence[FloatArray]) -> None:
        """Fit every constant of one kind, the others held."""
        errors = self._errors(axis, found)
        for key, name in enumerate(self.names[axis]):
            mine = used & (self.code[axis] == key)
            if mine.any() and (axis < 2 or name):
                found[axis][key] = self._best(axis, errors, mine, float(usual[axis][key]), PULLS[axis])

    def _by_gpu(self, used: BoolArray, found: Sequence[FloatArray]) -> FloatArray:
        """The clock of each kind of GPU over all sources, for each source's key."""
        errors = self._errors(1, found)
        clocks = np.zeros(len(self.names[1]))
        for gpu in set(self.gpus):
            mine = used & np.isin(self.code[1], [i for i, g in enumerate(self.gpus) if g == gpu])
            if mine.any():
                best = self._best(1, errors, mine, 0.0, WEAK_PULL)
                clocks[[i for i, g in enumerate(self.gpus) if g == gpu]] = best
        return clocks

    def by_gpu(self) -> dict[str, float]:
        """The clock of each kind of GPU over the shipped one, from all rows."""
        every = np.ones(len(self.rows), dtype=bool)
        found = self._by_gpu(every, self.at(every))
        return {gpu: float(np.exp(-v)) for gpu, v in zip(self.gpus, found, strict=True)}

    def _errors(self, axis: int, found: Sequence[FloatArray]) -> FloatArray:
        """|ln ratio| of every row for all candidates of one constant."""
        return np.abs(_along(self._but(axis, found), _LOGS[axis], _CANDIDATES[axis][None, :]))

    def _best(self, axis: int, errors: FloatArray, mine: BoolArray, usual: float, pull: float) -> float:
        loss = self.weights[mine] @ errors[mine] / self.weights[mine].sum()
        return float(_CANDIDATES[axis][int((loss + pull * np.abs(_CANDIDATES[axis] - usual)).argmin())])

    def _but(self, axis: int, found: Sequence[FloatArray]) -> FloatArray:
        """Every row's ratio along one axis, the others at their present values."""
        values = self.ratio
        for other in (2, 1, 0):
            if other != axis:
                at = found[other][self.code[other]]
                values = _along(np.moveaxis(values, other + 1, -1), _LOGS[other], at[:, None])
                values = np.moveaxis(values, -1, other + 1)
        return values.reshape(len(self.rows), -1)

    def residuals(self, found: Sequence[FloatArray]) -> FloatArray:
        """ln(predicted / measured) of every row; a constant that is NaN is as usual."""
        known = [np.where(np.isnan(f), u, f) for f, u in zip(found, self.usual, strict=True)]
        return _along(self._but(0, known), _LOGS[0], known[0][self.code[0]][:, None])[:, 0]

    def constants(self, found: Sequence[FloatArray]) -> Constants:
        """Factors as the constants they make."""
        host, products, network = (
            {name: float(v) for name, v in zip(self.names[axis], found[axis], strict=True) if np.isfinite(v)}
            for axis in range(3)
        )
        return Constants(
            {k: _profile(k).forward_us * float(np.exp(v)) for k, v in host.items()},
            {k: float(np.exp(-v)) for k, v in products.items()},
            {k: float(np.exp(v)) for k, v in network.items() if k},
        )

    def without(self, labels: npt.NDArray[np.str_], out: Iterable[str]) -> dict[str, list[FloatArray]]:
        """The fit without each group or source."""
        return {name: self.at(labels != name) for name in out}


def _along(values: FloatArray, grid: FloatArray, at: FloatArray) -> FloatArray:
    """Values over a grid on their last axis, linearly at other places: ``at`` is (rows or 1) × places."""
    place = np.clip(np.searchsorted(grid, at) - 1, 0, len(grid) - 2)
    share = (at - grid[place]) / (grid[place + 1] - grid[place])
    lead = values.shape[1:-1]
    full = (len(values), *lead, at.shape[1])
    where = np.broadcast_to(place.reshape(len(place), *[1] * len(lead), -1), full)
    part = share.reshape(len(share), *[1] * len(lead), -1)
    below = np.take_along_axis(values, where, axis=-1)
    above = np.take_along_axis(values, where + 1, axis=-1)
    return np.asarray(below * (1 - part) + above * part)


def reaches(rows: Sequence[Surface], residuals: FloatArray, share: float = 0.9) -> Mapping[str, float]:
    """For every class how many times its spread an interval must reach to hold so many left-out rows; the
    sources of a class weigh alike."""
    found = {}
    for kind in sorted({r.kind for r in rows}):
        mine = [i for i, r in enumerate(rows) if r.kind == kind]
        away = np.abs(residuals[mine]) / np.array([rows[i].spread for i in mine])
        sources = [rows[i].source for i in mine]
        weights = np.array([1 / sources.count(source) for source in sources])
        order = np.argsort(away)
        held = np.cumsum(weights[order]) / weights.sum()
        found[kind] = float(away[order][min(int(np.searchsorted(held, share)), len(mine) - 1)])
        found[kind] /= INTERVAL_SIGMAS
    return found


@click.command("llm")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
def command(data: Path | None) -> None:
    """Host work of frameworks, sustained clocks and sites' networks, from measured steps, and how far
    intervals must reach for the rows of a source that took no part."""
    rows: list[Surface] = []
    for file, found in all_cases(data_folder(data)):
        timed = [case for case in found if case.measured_ms is not None and not case.slow]
        rows += [s for s in map(surface, timed[:: EVERY.get(file.name, 1)]) if s is not None]
        click.echo(f"{file.name}: {len(rows)} rows priced", err=True)
    fit = Fit(rows)
    constants = fit.constants(fit.at(np.ones(len(rows), dtype=bool)))
    for kind in ("host_us", "clock", "network"):
        for name, value in getattr(constants, kind).items():
            click.echo(f"{kind:10s} {name:40s} {value:.4g}")
    for gpu, value in fit.by_gpu().items():
        click.echo(f"{'clock':10s} {gpu:40s} {value:.4g} over all sources")
    sources = fit.without(fit.sources, list(dict.fromkeys(r.source for r in rows)))
    foreign = left_out(fit, sources, fit.sources)
    for kind, reach in reaches(rows, foreign).items():
        click.echo(f"{'reach':10s} {kind:40s} {reach:.2f}")
    nodes = [replace(r, kind="many nodes" if r.kind.endswith(" nodes") else "one node") for r in rows]
    for kind, reach in reaches(nodes, foreign).items():
        click.echo(f"{'reach':10s} {'unknown framework, ' + kind:40s} {reach:.2f}")
    click.echo(f"{len(rows)} rows of {len(sources)} sources")


def left_out(fit: Fit, without: Mapping[str, list[FloatArray]], labels: npt.NDArray[np.str_]) -> FloatArray:
    """Every row's residual by the fit without its group or source."""
    found = np.empty(len(labels))
    for name, less in without.items():
        mine = labels == name
        found[mine] = fit.residuals(less)[mine]
    return found


def _profile(framework: str) -> HostProfile:
    """The host profile that a framework's newest recipe names."""
    return profile_of(recipe_of(framework).framework.host_profile)
