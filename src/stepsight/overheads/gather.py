"""Gathers T1–T5 from the host operators of traced steps.

Samples outside 1.5 interquartile ranges are dropped and the mean is kept, with its
spread. What the profiler itself cost is taken out and kept, so that a
profiled run can be rebuilt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stepsight.constants import area
from stepsight.estimate import FloatArray
from stepsight.overheads.tables import OpStats, Overheads, Stat, class_defaults, op_class
from stepsight.program.job import HostTimes

C = area("overheads")
FEWEST_TO_TRIM = C.whole("FEWEST_TO_TRIM")
PROFILER_CPU_EVENT_US = C.number("PROFILER_CPU_EVENT_US")


@dataclass(frozen=True, slots=True)
class HostSample:
    """One operator as a trace showed it.

    ``before`` is the operator before it on the host, ``place`` says which of the like
    operators after the like it is ("2/3"), ``recorded_ops`` the operators recorded
    inside it (itself included), ``call`` the runtime call of its first launch.
    """

    name: str
    before: str
    launches: int
    times: HostTimes
    recorded_ops: int = 1
    call: str = ""
    place: str = ""


@dataclass(slots=True)
class Gathered:
    """Samples by operator, and by operator in its place after another."""

    samples: list[HostSample] = field(default_factory=list)
    _means: dict[tuple[str, ...], HostTimes] = field(default_factory=dict)

    def add(self, samples: Iterable[HostSample]) -> None:
        self.samples += samples
        self._means.clear()

    def individual(self, name: str, before: str, launches: int, place: str = "") -> HostTimes | None:
        """Mean T1–T5 of an operator, profiler included: in its place, else after its like, else anywhere.

        The place matters: the gap before the first operator of a step is the data loader's.
        """
        if not self._means:
            self._fill()
        known = (name, str(launches), before, place)
        for key in (known, known[:3], known[:2]):
            if key in self._means:
                return self._means[key]
        return None

    def _fill(self) -> None:
        groups: dict[tuple[str, ...], list[HostTimes]] = defaultdict(list)
        for s in self.samples:
            groups[s.name, str(s.launches), s.before, s.place].append(s.times)
            groups[s.name, str(s.launches), s.before].append(s.times)
            groups[s.name, str(s.launches)].append(s.times)
        for key, times in groups.items():
            rows = np.array([(t.t1, t.t2, t.t3, t.t4, t.t5) for t in times])
            # In its place untrimmed: a workload's own long calls are part of its steps. Out of
            # place trimmed: the data loader's gap belongs to one place alone.
            weights = np.ones_like(rows) if len(key) > 2 else typical(rows)
            self._means[key] = HostTimes(*np.average(rows, axis=0, weights=weights).tolist())

    def recording_cost(self) -> tuple[float, float]:
        """What recording an operator and a launch cost in this very session, however much it was.

        For samples of one trace: with stacks or shapes recorded it is up to ten times METHOD's figure.
        """
        return _profiler_cost(self.samples, float("inf"), float("inf"))

    def overheads(
        self, host: str, provenance: str, profiler_us: tuple[float, float] | None = None
    ) -> Overheads:
        """The shared table: by operator and by runtime call, without the profiler's cost.

        ``profiler_us`` is that cost per operator and per launch; by default METHOD's figures, or
        less where the samples show less.
        """
        by_name: dict[str, list[HostSample]] = defaultdict(list)
        for sample in self.samples:
            by_name[sample.name].append(sample)
        cost = profiler_us or _profiler_cost(self.samples, PROFILER_CPU_EVENT_US, C.PROFILER_GPU_EVENT_US)
        ops = {name: _stats(samples, cost) for name, samples in sorted(by_name.items())}
        calls: dict[str, list[float]] = defaultdict(list)
        for sample in self.samples:
            if sample.call:
                calls[sample.call].append(sample.times.t4)
        launches = {call: _less(np.array(v), cost[1]) for call, v in sorted(calls.items())}
        return Overheads(ops, class_defaults(ops), launches, provenance, host)


def typical(values: FloatArray) -> FloatArray:
    """Which samples (of each column) lie within 1.5 interquartile ranges of the quartiles, on a logarithmic
    scale; all of a few.

    Host times are skewed: a fence in µs cuts off their honest tail, which is 4–8 % of the
    host-bound traces' steps.
    """
    if len(values) < FEWEST_TO_TRIM:
        return np.ones_like(values)
    scale = np.log(np.maximum(values, 0.0) + 1.0)
    low, high = np.percentile(scale, [25, 75], axis=0)
    reach = C.FENCE * (high - low)
    return np.asarray((scale >= low - reach) & (scale <= high + reach), dtype=np.float64)


def _profiler_cost(samples: list[HostSample], most_cpu_us: float, most_gpu_us: float) -> tuple[float, float]:
    """What recording a host operator and a launch cost on this host.

    A view does next to nothing: what its range shows is the recording.
    """
    views = [s.times.t5 for s in samples if not s.launches and op_class(s.name) == "view"]
    calls = [s.times.t4 for s in samples if s.launches]
    cpu = min(most_cpu_us, float(np.median(views))) if views else PROFILER_CPU_EVENT_US
    gpu = min(most_gpu_us, C.LAUNCH_SHARE * float(np.median(calls))) if calls else C.PROFILER_GPU_EVENT_US
    return cpu, gpu


def _stats(samples: list[HostSample], profiler: tuple[float, float]) -> OpStats:
    launching = [s for s in samples if s.launches]
    idle = [s for s in samples if not s.launches]
    several = [s for s in launching if s.launches > 1]

    def part(name: str, chosen: list[HostSample]) -> Stat | None:
        if not chosen:
            return None
        values = np.array([getattr(s.times, name) for s in chosen])
        cost = (
            profiler[1] if name == "t4" else profiler[0] * float(np.mean([_share(s, name) for s in chosen]))
        )
        return _less(values, cost)

    t1 = part("t1", samples)
    return OpStats(
        t1, part("t2", launching), part("t3", launching), part("t4", launching), part("t5", several),
        part("t5", idle),
    )  # fmt: skip


def _share(sample: HostSample, name: str) -> float:
    """Recorded operators that fall into this part of the operator's time."""
    if name == "t1":
        return 0.0
    times = sample.times
    gaps = times.t5 * max(sample.launches - 1, 0) if sample.launches else times.t5
    whole = times.t2 + times.t3 + gaps
    if whole <= 0:
        return 0.0
    return sample.recorded_ops * float(getattr(times, name)) / whole


def _less(values: FloatArray, cost_us: float) -> Stat:
    kept = values[typical(values) > 0]
    mean = float(kept.mean())
    net = max(mean - cost_us, C.KEPT_SHARE * mean)
    return Stat(net, float(kept.std()), len(kept), mean - net)
