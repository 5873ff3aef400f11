"""Makes the overheads that ship with stepsight, one set per host era.

Sources: the published V100-era studies, and every trace whose GPU is in the catalogue.
The study of 2022 sets the pace: it covers seven workloads on one host, and its profiler's cost is
out. Every trace is brought to that pace before it votes (`sessions`), and an era's set is
the outcome at the usual pace of the era's hosts. Operators that an era's traces never show
are carried over from the V100 era.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

import stepsight.overheads as overheads_package
from lab.datasets.folder import data_folder
from lab.fit.overheads.published import MODELS, NAME, WITHOUT, Study, read_single, recommendation_set
from lab.fit.overheads.sessions import Ops, Pace, ProfiledSession, joined, over, paced
from stepsight.errors import InputError
from stepsight.hardware.gpus import find_gpu, gpu_catalogue
from stepsight.overheads.gather import Gathered
from stepsight.overheads.tables import LAUNCH, Overheads, Stat, class_defaults
from stepsight.program.job import HostTimes
from stepsight.trace.files import trace_files
from stepsight.trace.kineto import looks_like_kineto, read_kineto
from stepsight.trace.program import trace_samples

BASE_ERA = "v100"
_SYNCHRONIZE = "cudaStreamSynchronize"
_STALL_US = 2000.0
"""A part above this is a stall (an allocation, a page fault, a busy core), not the operator's cost."""
_LEFT_OUT = ("tp2_2xV100", "critical_path_units", "dlrm_kineto.tar", "vgg13_H100")
"""A GPU shared with another job; unit tests of a tracer; a copy of another folder; a first step
that still allocates."""


Sessions = Mapping[str, Sequence[ProfiledSession]]
"""Sessions by the era of their host."""


def shipped_sets(data: Path, by_era: Sessions | None = None) -> dict[str, Overheads]:
    """The overheads of every host era, from the folder of measured data.

    ``by_era``: these sessions in place of all its traces.
    """
    study = Study.read(data / "overheads").typical()
    by_era = trace_sessions(data / "traces") if by_era is None else by_era
    single = ProfiledSession("published DLRM", read_single(data / "overheads"), {})
    base, _ = joined([*by_era.get(BASE_ERA, ()), single], study)
    known = over(study, base.ops)
    traces = f"{len(by_era.get(BASE_ERA, ()))} profiler traces of {BASE_ERA}-era hosts at their pace"
    provenance = f"published V100-era studies of eager PyTorch (2021, 2022); {traces}"
    sets = {BASE_ERA: _table(known, base.calls, Pace(), provenance, BASE_ERA)}
    for era, sessions in by_era.items():
        if era != BASE_ERA and sessions:
            mine, pace = joined(sessions, study)
            where = (
                f"{len(sessions)} profiler traces of {era}-era hosts, at {pace.inside:.2f} times {provenance}"
            )
            sets[era] = _table(over(mine.ops, known), {**base.calls, **mine.calls}, pace, where, era)
    return sets


def host_era(device: str) -> str | None:
    """The era of the host that a GPU of this name usually has."""
    entry = find_gpu(device) if device else None
    if entry:
        return entry.host_era
    identical = [e for name, e in gpu_catalogue().items() if name.split("-")[0] in device]
    return identical[0].host_era if identical else None


def trace_sessions(folder: Path) -> dict[str, list[ProfiledSession]]:
    """Every usable trace by its host's era; those of one folder are taken to share a host."""
    found: dict[str, list[ProfiledSession]] = defaultdict(list)
    for file in trace_files([folder]):
        if any(part in file.path for part in _LEFT_OUT) or not looks_like_kineto(file.content):
            continue
        try:
            trace = read_kineto(file)
        except InputError:
            continue
        era = host_era(trace.device)
        # ROCm's tracer slows the host far more than CUPTI does: its traces say little of a host.
        if era is None or not trace.host_ops or "AMD" in trace.device:
            continue
        gathered = Gathered()
        gathered.add(s for s in trace_samples(trace) if _is_typical(s.times) and "triton" not in s.name)
        if gathered.samples:
            found[era].append(ProfiledSession.of(Path(file.path).relative_to(folder).parts[0], gathered))
    return found


def _is_typical(times: HostTimes) -> bool:
    return max(times.t1, times.t2, times.t3, times.t4, times.t5) < _STALL_US


def _table(ops: Ops, calls: Mapping[str, Stat], pace: Pace, provenance: str, era: str) -> Overheads:
    here = paced(ops, pace)
    launches = {name: stat.scaled(pace.launch) for name, stat in calls.items()}
    # A synchronize call's length is mostly the wait for the GPU, which the simulation adds itself.
    launches[_SYNCHRONIZE] = Stat(launches[LAUNCH].mean, 0.0, 0)
    return Overheads(here, class_defaults(here), launches, provenance, era)


@click.command("overheads")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables and traces.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write; the package's own by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, out: Path | None, as_json: bool) -> None:
    """Host overheads T1–T5 by operator and host era."""
    from stepsight.documents import to_json

    folder = out or Path(overheads_package.__file__).parent / "defaults"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    measured = data_folder(data)
    sets = shipped_sets(measured)
    sets[NAME] = recommendation_set(measured / "overheads", sets[BASE_ERA])
    for model in MODELS if out is None else ():
        left = recommendation_set(measured / "overheads", sets[BASE_ERA], model)
        left.save(WITHOUT / f"without-{model}.json")
    for era, overheads in sets.items():
        overheads.save(folder / f"{era}.json")
        written.append({"era": era, "operators": len(overheads.ops), "provenance": overheads.provenance})
        click.echo(f"{era}: {len(overheads.ops)} operators; {overheads.provenance}", err=as_json)
    if as_json:
        click.echo(to_json(written))
