"""Which other runs a run may take its host times from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lab.fit.traces.runs import ScoredRun
from stepsight.overheads.gather import HostSample
from stepsight.overheads.sharing import HostPool, SharedTimes
from stepsight.trace.step.host_times import samples_of
from stepsight.trace.step.job import clean_steps, rank_program
from stepsight.trace.step.pauses import recording_gaps, sleeps

_STEPS = 3
"""Steps of a run that go into the pool of its host."""


class SharedHosts:
    """The host times of all scored runs, by host and workload; runs that are left out give none.

    Traces do not name their host; those of one collection (top folder) are taken to share
    one, and another folder inside it is another workload.
    """

    def __init__(self, runs: Sequence[ScoredRun]) -> None:
        self._samples: dict[str, dict[str, list[HostSample]]] = defaultdict(lambda: defaultdict(list))
        for run in runs:
            if not run.left_out:
                self._samples[run.host][run.workload] += _samples(run)
        self._pools = {
            host: HostPool([s for samples in by_workload.values() for s in samples])
            for host, by_workload in self._samples.items()
        }
        self._other_hosts: dict[str, SharedTimes] = {}

    def other_hosts(self, run: ScoredRun) -> SharedTimes:
        """What every host but the run's own shows."""
        if run.host not in self._other_hosts:
            pools = [pool for host, pool in self._pools.items() if host != run.host]
            self._other_hosts[run.host] = SharedTimes(pools)
        return self._other_hosts[run.host]

    def same_host(self, run: ScoredRun) -> SharedTimes | None:
        """What other workloads of the run's host show, if there are any; other hosts fill the gaps."""
        siblings = [
            s
            for workload, found in self._samples[run.host].items()
            if workload != run.workload
            for s in found
        ]
        return self.other_hosts(run).beside(HostPool(siblings)) if siblings else None


def _samples(scored: ScoredRun) -> list[HostSample]:
    run = scored.run
    samples: list[HostSample] = []
    for rank in run.ranks:
        pauses = sleeps([rank_program(run, rank, s) for s in range(run.steps)])
        for step in clean_steps(run)[:_STEPS]:
            program = rank_program(run, rank, step)
            samples += samples_of(program, {**pauses, **recording_gaps(rank.linked, program)})
    return samples
