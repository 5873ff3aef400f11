"""Fit the catalogue's curves from measured tables: ``python -m lab fit collectives``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.collectives.pcie import reached_shares, shares
from lab.fit.collectives.rows import MeasuredRows, read_aiconfigurator, read_nccl, read_paper
from lab.fit.constants import store
from stepsight.collectives.curve import Curve
from stepsight.collectives.extrapolate import curve_position
from stepsight.collectives.measured import CATALOGUE
from stepsight.collectives.roofline import bus_factor
from stepsight.estimate import FloatArray
from stepsight.program.job import COLLECTIVE_KINDS
from stepsight.records import read_toml

SYSTEMS = Path(__file__).with_name("systems.toml")
FEWEST_SIZES = 5
"""A run with fewer sizes says too little about its shape to enter a pooled curve alone."""
EXCHANGES = ("all_to_all", "send_recv")
LEAST_BYTES = 64.0
"""Sizes below are the same latency floor; they are left out of the shipped knots."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run's own curve: both buffers, all repeats."""

    curve: Curve
    source: str
    forced: bool


@dataclass(frozen=True, slots=True)
class PooledCurve:
    """What all runs of one machine say together about one collective and group."""

    curve: Curve
    runs: int
    forced: bool


def fit_catalogue(folder: Path) -> dict[str, Any]:
    """The record of ``curves.json``: every system of ``systems.toml`` with its pooled curves."""
    nccl = read_nccl(folder)
    entries = read_toml(SYSTEMS)["system"]
    systems = [_fit_system(entry, nccl, folder) for entry in entries]
    return {
        "provenance": "pooled by `python -m lab fit collectives` from published nccl-tests style runs and "
        "aiconfigurator-core's NCCL tables (Apache-2.0); knots are fitted, not measured rows",
        "rank_transfer": fit_rank_transfer(nvswitch_rows(nccl)),
        "systems": systems,
    }


def machine_runs(nccl: MeasuredRows, folder: Path) -> list[list[Run]]:
    """The runs of every machine, collective and group, for scoring one source by the others."""
    entries = read_toml(SYSTEMS)["system"]
    found: list[list[Run]] = []
    for entry in entries:
        parts = [(_select(rule, nccl, folder), bool(rule.get("forced"))) for rule in entry["rows"]]
        found += [runs for runs in _runs(parts).values() if len({run.source for run in runs}) > 1]
    return found


def nvswitch_rows(nccl: MeasuredRows) -> MeasuredRows:
    """One-node runs on NVSwitch, which show what doubling a group does."""
    machines = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")
    switched = (nccl.nodes == 1) & np.isin(nccl.source, ["abhivijay96", "vidur", "xxrjun_cluster"])
    switched &= (nccl.source != "vidur") | (np.char.find(nccl.platform, "DGX") >= 0)
    return MeasuredRows.concatenate(
        [nccl.where(switched), *(read_aiconfigurator(m, ("half", "int8")) for m in machines)]
    )


def _fit_system(entry: Mapping[str, Any], nccl: MeasuredRows, folder: Path) -> dict[str, Any]:
    parts = [(selected, bool(rule.get("forced"))) for rule in entry["rows"]
             if len(selected := _select(rule, nccl, folder))]  # fmt: skip
    curves = []
    for (kind, ranks, nodes), runs in sorted(_runs(parts).items()):
        pooled = pool(runs)
        if pooled is None:
            continue
        forced = {"forced": True} if pooled.forced else {}
        curves.append({"kind": kind, "ranks": ranks, "nodes": nodes, "runs": pooled.runs, **forced,
                       **_short(pooled.curve)})  # fmt: skip
    sources = sorted({str(source) for rows, _ in parts for source in np.unique(rows.source)})
    names = ("name", "gpus", "link", "link_gbps", "nic", "nic_gbps")
    described = {name: entry[name] for name in names if name in entry}
    return {**described, "provenance": ", ".join(sources), "curves": curves}


def _select(rule: Mapping[str, Any], nccl: MeasuredRows, folder: Path) -> MeasuredRows:
    if "aiconfigurator" in rule:
        rows = read_aiconfigurator(rule["aiconfigurator"])
    elif "paper" in rule:
        rows = read_paper(folder / "collectives" / rule["paper"])
    else:
        rows = nccl.where(nccl.source == rule["source"])
    mask = np.isin(rows.kind, COLLECTIVE_KINDS) & (rows.bytes >= rule.get("min_bytes", 0))
    mask &= rows.bytes <= rule.get("max_bytes", np.inf)
    exchange = np.isin(rows.kind, EXCHANGES)
    mask &= ~exchange | (rows.bytes >= rule.get("exchange_min_bytes", 0))
    if "platform" in rule:
        mask &= np.char.find(rows.platform, rule["platform"]) >= 0
    if "link" in rule:
        mask &= rows.interconnect == rule["link"]
    if "ranks" in rule:
        mask &= rows.ranks == rule["ranks"]
    if "nodes" in rule:
        mask &= rows.nodes == rule["nodes"]
    if rule.get("multi_node"):
        mask &= rows.nodes > 1
    return rows.where(mask)


def _runs(parts: Iterable[tuple[MeasuredRows, bool]]) -> dict[tuple[str, int, int], list[Run]]:
    """Every run's curve, by kind, ranks and nodes."""
    runs: dict[tuple[str, int, int], list[Run]] = {}
    for rows, forced in parts:
        for key, run in rows.groups(
            ("source", "platform", "nccl_version", "dtype", "kind", "ranks", "nodes")
        ):
            shape = (str(key[4]), int(key[5]), int(key[6]))
            runs.setdefault(shape, []).append(Run(Curve.fit(run.bytes, run.time_us), str(key[0]), forced))
    return runs


def pool(runs: Sequence[Run]) -> PooledCurve | None:
    """The median over sources (each the median of its runs) at every power of two they cover.

    Runs with a forced algorithm count only where no other run was measured.
    """
    if not runs:
        return None
    free = [run for run in runs if not run.forced]
    chosen = free or list(runs)
    chosen = [run for run in chosen if len(run.curve) >= FEWEST_SIZES] or chosen
    sizes, times = [], []
    for size in _octaves([run.curve for run in chosen]):
        by_source: dict[str, list[float]] = {}
        for run in chosen:
            if _covers(run.curve, size):
                by_source.setdefault(run.source, []).append(float(np.log(run.curve.time_us(size))))
        if by_source:
            ln_times = [float(np.median(values)) for values in by_source.values()]
            sizes.append(size)
            times.append(float(np.exp(np.median(ln_times))))
    if not sizes:
        return None
    own = float(np.median([run.curve.measured_spread for run in chosen]))
    curve = Curve.fit(sizes, times)
    return PooledCurve(Curve(curve.sizes, curve.times_us, own), len(chosen), not free)


def _octaves(curves: Sequence[Curve]) -> FloatArray:
    low = max(min(curve.sizes[0] for curve in curves), LEAST_BYTES)
    high = max(curve.sizes[-1] for curve in curves)
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
    return np.exp2(np.arange(first, max(last, first) + 1, dtype=np.float64))


def _covers(curve: Curve, size: float) -> bool:
    low, high = curve.range_bytes
    return 0.75 * low <= size <= 1.34 * high


def _short(curve: Curve) -> dict[str, Any]:
    """Knots with four significant figures, those that carry nothing left out."""
    kept = [0]
    for i in range(1, len(curve) - 1):
        line = Curve(curve.sizes[[kept[-1], i + 1]], curve.times_us[[kept[-1], i + 1]])
        if abs(float(line.time_us(curve.sizes[i])) / curve.times_us[i] - 1) > 1e-3 or i - kept[-1] > 2:
            kept.append(i)
    if len(curve) > 1:
        kept.append(len(curve) - 1)
    return {
        "bytes": [int(curve.sizes[i]) for i in kept],
        "time_us": [float(f"{curve.times_us[i]:.4g}") for i in kept],
        "spread": round(curve.measured_spread, 3),
    }


@click.command("collectives")
@click.option("--data", "folder", type=click.Path(), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), default=CATALOGUE, help="Where to write the curves.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(folder: str | None, out: Path, as_json: bool) -> None:
    """Refit the shipped collective curves from measured tables."""
    from stepsight.documents import to_json, write_whole

    record = fit_catalogue(data_folder(folder))
    if out == CATALOGUE:
        store("collectives", {"PCIE_SHARE": shares(reached_shares(data_folder(folder)))})
    write_whole(out, msgspec.json.format(msgspec.json.encode(record), indent=0) + b"\n")
    written = [
        {"machine": system["name"], "curves": len(system["curves"]), "provenance": system["provenance"]}
        for system in record["systems"]
    ]
    if as_json:
        click.echo(to_json(written))
        return
    curves = sum(machine["curves"] for machine in written)
    click.echo(f"{curves} curves of {len(written)} machines written to {out}")


POSITIONS = np.arange(-12.0, 10.0, 2.0)
"""Where on the curve: log2(bandwidth time / latency floor), in steps of two octaves."""
KINDS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter")
DOUBLINGS = (2, 4)
"""Group sizes to double that the machines of the tables show."""
FEWEST_TO_DOUBLE = 8
SMOOTHING = 0.09
"""Weight of the squared step between neighbouring positions, against one average machine."""
ROBUST_LN = 0.02
"""Errors below this count squared, above by their size: one stack's odd switch must not rule."""


@dataclass(frozen=True, slots=True)
class DoublingSample:
    """One machine's curve at ``ranks`` against its measured times at twice as many."""

    machine: str
    kind: str
    ranks: int
    position: FloatArray
    ln_ratio: FloatArray


def doubling_samples(rows: MeasuredRows) -> list[DoublingSample]:
    """Every run measured at n and at 2n ranks."""
    key = ("source", "platform", "nccl_version", "dtype", "kind", "ranks")
    runs = {k: run for k, run in rows.groups(key) if len(np.unique(run.bytes)) >= FEWEST_TO_DOUBLE}
    samples = []
    for (source, platform, version, dtype, kind, ranks), run in runs.items():
        doubled = runs.get((source, platform, version, dtype, kind, 2 * ranks))
        if kind not in KINDS or ranks not in DOUBLINGS or doubled is None:
            continue
        samples.append(_sample(f"{source} {platform}", str(kind), int(ranks), run, doubled))
    return samples


def _sample(machine: str, kind: str, ranks: int, run: MeasuredRows, doubled: MeasuredRows) -> DoublingSample:
    curve = Curve.fit(run.bytes, run.time_us)
    sizes = np.unique(doubled.bytes)
    times = np.array([np.median(doubled.time_us[doubled.bytes == size]) for size in sizes])
    identical = sizes * bus_factor(kind, 2 * ranks) / bus_factor(kind, ranks)
    covered = identical >= 0.99 * curve.sizes[0]
    identical, times = identical[covered], times[covered]
    return DoublingSample(
        machine, kind, ranks, curve_position(curve, identical), np.log(times / curve.time_us(identical))
    )


def fit_doubling(samples: Sequence[DoublingSample]) -> FloatArray:
    """ln(ratio) at `POSITIONS`: least absolute error, every machine with the same weight."""
    runs_of = {s.machine: sum(o.machine == s.machine for o in samples) for s in samples}
    position = np.concatenate([s.position for s in samples])
    target = np.concatenate([s.ln_ratio for s in samples])
    weight = np.concatenate(
        [np.full(len(s.position), 1 / len(s.position) / runs_of[s.machine]) for s in samples]
    )
    n = len(POSITIONS)
    basis = np.stack([np.interp(position, POSITIONS, np.eye(n)[i]) for i in range(n)], axis=1)
    steps = np.diff(np.eye(n), axis=0)
    robust = weight.copy()
    solution = np.zeros(n)
    for _ in range(20):
        normal = basis.T @ (basis * robust[:, None]) + SMOOTHING * robust.mean() * (steps.T @ steps)
        solution = np.linalg.solve(normal, basis.T @ (robust * target))
        robust = weight / np.maximum(np.abs(target - basis @ solution), ROBUST_LN)
    return solution


def fit_rank_transfer(rows: MeasuredRows) -> dict[str, Any]:
    """The record of all doublings for ``curves.json``."""
    samples = doubling_samples(rows)
    doublings = []
    for kind in KINDS:
        for ranks in DOUBLINGS:
            identical = [s for s in samples if s.kind == kind and s.ranks == ranks]
            ln_ratio = [round(float(value), 4) for value in fit_doubling(identical)]
            doublings.append({"kind": kind, "ranks": ranks, "runs": len(identical), "ln_ratio": ln_ratio})
    return {"positions": POSITIONS.tolist(), "doublings": doublings}
