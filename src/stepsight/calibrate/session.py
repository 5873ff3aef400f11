"""One calibration: the stages in turn, every sample into the journal, within a budget of time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepsight.calibrate.draws import (
    chosen_kernels,
    other_kernels,
    random_tables,
    random_torchrec,
    rehearsal_documents,
    table_lookup,
)
from stepsight.calibrate.journal import ALONE, FUSED, PHASES, Journal, kernel_record, overhead_records
from stepsight.calibrate.rehearsal import measure_group, pending
from stepsight.constants import area
from stepsight.errors import InputError, StepsightError
from stepsight.overheads.gather import HostSample
from stepsight.records import seconds
from stepsight.run.ranks import Ranks
from stepsight.workload.dlrm.config import EAGER, TORCHREC_STACK
from stepsight.workload.files import parse_workload

_CONSTANTS = area("calibrate")
ALONE_ROUNDS = _CONSTANTS.whole("ALONE_ROUNDS")
FIRST_LOOKED_UP = _CONSTANTS.whole("FIRST_LOOKED_UP")
PROFILED = tuple(map(int, _CONSTANTS.numbers("PROFILED")))
SHORTEST_S = _CONSTANTS.number("SHORTEST_S")

Progress = Callable[[str, int, int], None]
"""Called with the stage, how much of it is done, and how much there is."""


@dataclass
class Calibration:
    """Measures on a group of ranks what the journal does not hold yet."""

    ranks: Ranks
    journal: Journal
    budget_s: float
    progress: Progress
    seed: int = 0
    stack: str = EAGER
    _started: float = field(default_factory=time.monotonic)

    @property
    def amounts(self) -> Amounts:
        return Amounts.within(self.budget_s)

    def run(self) -> None:
        """All stages; each may use its share of the budget, and what earlier ones left over."""
        self.journal.add(NOISE, [{"pass": "start", **machine_state()}])
        spent = 0.0
        for stage, work in self._stages():
            spent += SHARES[stage] * self.budget_s
            work(self._started + spent)
        self.journal.add(NOISE, [{"pass": "end", **machine_state()}])

    def _stages(self) -> Iterator[tuple[str, Callable[[float], None]]]:
        yield KERNELS, self._kernels
        yield LOOKUPS, self._lookups
        yield HOST, self._host
        if self.ranks.ranks > 1:
            yield COLLECTIVES, self._collectives
            yield CONTENTION, self._contention
        yield REHEARSAL, self._rehearsal

    def _kernels(self, deadline: float) -> None:
        from stepsight.calibrate.kernel_bench import measure, rounds_of

        amounts = self.amounts
        workloads = [
            parse_workload(d, d["name"]) for d in self._documents(2 * amounts.dlrms, 2 * amounts.transformers)
        ]
        kernels = chosen_kernels(workloads, self.ranks.device, amounts.kernels, self.seed)
        rounds = list(rounds_of([*kernels, *other_kernels(self.seed)], self.seed))
        for i, members in enumerate(self._until(deadline, KERNELS, rounds)):
            missing = [k for k in members if not self.journal.known(KERNELS, kernel_record(k))]
            if not missing:
                continue
            answers = self.ranks.call(measure, members, amounts.kernel_repeats, i)
            new = [
                {**kernel_record(kernel), "times_us": [_rounded(a[j]) for a in answers]}
                for j, kernel in enumerate(members)
                if answers[0][j] and kernel in missing
            ]
            self.journal.add(KERNELS, new)

    def _documents(self, dlrms: int, transformers: int) -> list[dict[str, Any]]:
        return rehearsal_documents(self.ranks.ranks, dlrms, transformers, self.stack)

    def _lookups(self, deadline: float) -> None:
        amounts = self.amounts
        if self.stack == TORCHREC_STACK:
            self._fused_lookups(deadline)
            return
        from stepsight.calibrate.lookup_bench import ROUND_TABLES

        tables = random_tables(amounts.tables, self.seed)
        rounds = [
            [{**table, "round": i // ROUND_TABLES} for table in tables[i : i + ROUND_TABLES]]
            for i in range(0, len(tables), ROUND_TABLES)
        ]
        self.ranks.restart()  # tables in memory that other benchmarks have used are slower
        for i, members in enumerate(self._until(deadline, LOOKUPS, rounds)):
            if all(self.journal.known(LOOKUPS, {**r, "phase": "forward"}) for r in members):
                continue
            self._lookup_round(members, i, alone=i < ALONE_ROUNDS and self.ranks.ranks > 1)

    def _fused_lookups(self, deadline: float) -> None:
        """Tables of models that are not rehearsed, a rank's in one call."""
        from stepsight.calibrate.lookup_bench import measure_fused

        amounts = self.amounts
        documents = [
            random_torchrec(self.ranks.ranks, FIRST_LOOKED_UP + i) for i in range(amounts.tables // 6)
        ]
        rounds = [documents[i : i + 4] for i in range(0, len(documents), 4)]
        self.ranks.restart()
        for i, members in enumerate(self._until(deadline, LOOKUPS, rounds)):
            if self.journal.known(LOOKUPS, {"document": members[0], "phase": f"{FUSED}forward"}):
                continue
            answers = self.ranks.call(measure_fused, members, amounts.table_repeats, i)
            self.journal.add(LOOKUPS, fused_records(members, answers))

    def _lookup_round(self, tables: Sequence[dict[str, Any]], number: int, *, alone: bool) -> None:
        from stepsight.calibrate.lookup_bench import measure

        lookups = [table_lookup(record) for record in tables]
        answers = self.ranks.call(measure, lookups, self.amounts.table_repeats, number, alone)
        for j, record in enumerate(tables):
            for phase in (p + how for how in (("", ALONE) if alone else ("",)) for p in PHASES):
                times = [_rounded(answer[j][phase]) for answer in answers]
                self.journal.add(LOOKUPS, [{**record, "phase": phase, "times_us": [t for t in times if t]}])

    def _host(self, deadline: float) -> None:
        """What the host spends around kernels, from profiled steps of every kind of workload."""
        from stepsight.calibrate.fit import gathered_overheads, profiled_samples

        if self.journal.of(HOST):
            return
        documents = self._documents(*PROFILED)
        samples: list[HostSample] = []
        for document in self._until(deadline, HOST, documents):
            workload = parse_workload(document, document["name"])
            try:
                samples += profiled_samples(self.ranks, workload)
            except StepsightError:  # torch's profiler has been seen to bring a rank down when it stops
                self.ranks.restart()
        if samples:
            self.journal.add(HOST, overhead_records(gathered_overheads(samples)))

    def _collectives(self, deadline: float) -> None:
        from stepsight.calibrate import collective_bench

        n = self.ranks.ranks
        wanted = [(k, s) for s in COLLECTIVE_BYTES for k in COLLECTIVE_KINDS]
        rounds = [wanted[i::4] for i in range(4)]
        for part in self._until(deadline, COLLECTIVES, rounds):
            missing = [
                (k, s)
                for k, s in part
                if not self.journal.known(COLLECTIVES, {"kind": k, "bytes": s, "ranks": n})
            ]
            if missing:
                repeats = self.amounts.collective_repeats
                answers = self.ranks.call(collective_bench.measure, missing, repeats)
                self.journal.add(
                    COLLECTIVES,
                    [
                        {"kind": k, "bytes": s, "ranks": n, "times_us": [a[j] for a in answers]}
                        for j, (k, s) in enumerate(missing)
                    ],
                )

    def _contention(self, deadline: float) -> None:
        from stepsight.calibrate import collective_bench

        if self.journal.of(CONTENTION):
            return
        for _ in self._until(deadline, CONTENTION, [0]):
            answers = self.ranks.call(collective_bench.measure_contention, self.amounts.contention_repeats)
            self.journal.add(CONTENTION, [row for rows in answers for row in rows])

    def _rehearsal(self, deadline: float) -> None:
        a = self.amounts
        left = pending(self.journal, REHEARSAL, self._documents(a.dlrms, a.transformers), a.passes)
        for number, group in self._until(deadline, REHEARSAL, left):
            self.ranks.restart()
            measure_group(self.ranks, self.journal, REHEARSAL, number, group, steps=a.steps, blocks=a.blocks)

    def _until(self, deadline: float, stage: str, work: Sequence[Any]) -> Iterator[Any]:
        """The pieces of work one by one, as long as there is time; at least one."""
        for i, piece in enumerate(work):
            self.progress(stage, i, len(work))
            if i and time.monotonic() > deadline:
                self.progress(stage, len(work), len(work))
                return
            yield piece
        self.progress(stage, len(work), len(work))


def fused_records(
    documents: Sequence[dict[str, Any]], answers: Sequence[Sequence[Any]]
) -> list[dict[str, Any]]:
    """What the journal keeps of the ranks' answers."""
    return [
        {
            "document": document,
            "phase": FUSED + phase,
            "times_us": [[turn[p] for turn in answer[i]] for answer in answers],
        }
        for i, document in enumerate(documents)
        for p, phase in enumerate(PHASES)
    ]


def _rounded(times: Sequence[float]) -> list[float]:
    return [round(t, 2) for t in times]


def machine_state() -> dict[str, Any]:
    """What else the machine is doing: its load, and time stolen by other tenants of the host."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    state: dict[str, Any] = {"time": round(time.time()), "load": round(load, 2)}
    stat = Path("/proc/stat")
    if stat.exists():
        fields = [int(x) for x in stat.read_text().splitlines()[0].split()[1:]]
        state |= {"stolen": fields[7] if len(fields) > 7 else 0, "ticks": sum(fields)}
    return state


KERNELS, LOOKUPS, HOST, COLLECTIVES, CONTENTION, REHEARSAL, NOISE = (
    "kernels", "lookups", "host", "collectives", "contention", "rehearsal", "noise",
)  # fmt: skip
SHARED = (KERNELS, COLLECTIVES, CONTENTION)
"""Stages that say the same whatever stack trains."""
SHARES = {KERNELS: 0.24, LOOKUPS: 0.18, HOST: 0.03, COLLECTIVES: 0.08, CONTENTION: 0.04, REHEARSAL: 0.43}
"""Of the budget. Rehearsal steps tell what no microbenchmark does, so they get nearly half of it."""
COLLECTIVE_KINDS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast")
COLLECTIVE_BYTES = tuple(4 * 2**e for e in (4, 6, 8, 10, *range(11, 24)))
"""64 bytes to 32 MiB, densest where gradient buckets and pooled embeddings lie."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much there is to do when time allows, and how often each thing is repeated."""

    kernels: int = 2400
    kernel_repeats: int = 9
    tables: int = 400
    table_repeats: int = 7
    collective_repeats: int = 6
    contention_repeats: int = 6
    dlrms: int = 16
    transformers: int = 12
    steps: int = 8
    blocks: int = 2
    passes: int = 2

    @classmethod
    def within(cls, budget_s: float) -> Amounts:
        """The full amounts from five minutes on; fewer samples, not fewer kinds, below."""
        share = min(1.0, max(budget_s / 300.0, 0.1))
        full = cls()
        return cls(
            kernels=round(full.kernels * share), tables=round(full.tables * share),
            dlrms=max(3, round(full.dlrms * share)), transformers=max(3, round(full.transformers * share)),
            passes=full.passes if share > 0.5 else 1,
            kernel_repeats=full.kernel_repeats if share > 0.5 else 5,
        )  # fmt: skip


def budget_seconds(text: str) -> float:
    """``5m``, ``90s``, ``1h``; a bare number is seconds."""
    found = seconds(text, "--budget")
    if found < SHORTEST_S:
        raise InputError(f"--budget {text}", "too short to measure anything", f"at least {SHORTEST_S:.0f}s")
    return found
