"""Measure a lookup here with an operator of `operators`: a forward, then a backward with its update.

Every call's own time is kept (a table's, or that of all tables at once): their sum is the
lookup's. Batches are fresh in every repeat, and the caches are swept before each phase, as
the dense part of a training step does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from stepsight.calibrate.lookups.operators import OPERATORS
from stepsight.estimate import FloatArray
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import EMBEDDING_BAG, Lookup, TableLookup

PHASES = ("forward", "backward")
_WARM = Lookup((TableLookup(8, 16, 4, 2, IndexDistribution.uniform()),))
"""A lookup of next to nothing, before what is timed."""
_SWEEP_BYTES = 96 << 20
"""Larger than the last-level cache of the processors at hand: reading it empties the caches."""


@dataclass(frozen=True, slots=True)
class LookupSample:
    """Repeated times of one lookup: ``times_us`` is passes × repeats × phases × calls.

    A call is a table's, or one of all tables (`OPERATORS`).
    Every pass builds the tables anew: where memory comes to lie is part of the noise.
    """

    lookup: Lookup
    times_us: FloatArray

    def call_us(self, quantile: float = 0.0) -> FloatArray:
        """Phases × calls: the least over the repeats, the statistic that repeats best; mean over passes."""
        return np.asarray(np.quantile(self.times_us, quantile, axis=1).mean(axis=0))

    def total_us(self, quantile: float = 0.0) -> FloatArray:
        """Per phase, over all tables."""
        return np.asarray(self.call_us(quantile).sum(axis=1))

    def of_pass(self, number: int) -> LookupSample:
        """One pass alone."""
        return LookupSample(self.lookup, self.times_us[number : number + 1])


class LookupBench:
    """One lookup with its weights and batches on a device, ready to be timed again and again."""

    def __init__(
        self, lookup: Lookup, *, device: str, batches: int, seed: int, memory: Any | None = None
    ) -> None:
        import torch

        self._torch, self._device, self.lookup = torch, torch.device(device), lookup
        # One thread's own time does not count what other programs take of the processor.
        self._clock_ns = thread_time_ns if torch.get_num_threads() == 1 else perf_counter_ns
        rng = np.random.default_rng(seed)
        tables = OPERATORS[lookup.operator or EMBEDDING_BAG]
        self._tables = tables(lookup, device, memory)
        self._batches = [self._tables.batch(rng) for _ in range(batches)]
        self._warm = tables(replace(_WARM, optimizer=lookup.optimizer), device)
        self._warm_batch = self._warm.batch(rng)

    def run(self, repeat: int, sweep: Callable[[], object]) -> FloatArray:
        """One forward and one backward with its update: µs of each phase and call."""
        tables, batch = self._tables, self._batches[repeat % len(self._batches)]
        times = np.zeros((len(PHASES), tables.calls))
        calls = tables.forward(batch)
        sweep()
        warm = [call() for call in self._warm.forward(self._warm_batch)]
        outputs = [self._timed(call, times[0], i) for i, call in enumerate(calls)]
        sweep()
        calls = tables.backward(batch, outputs)
        # The code is warm in a training loop, only the data is not.
        for call in self._warm.backward(self._warm_batch, warm):
            call()
        for i, call in enumerate(calls):
            self._timed(call, times[1], i)
        return times

    @property
    def workspace_bytes(self) -> int:
        """More than a run allocates."""
        return self._tables.workspace_bytes

    def _timed(self, call: Callable[[], Any], times_us: FloatArray, number: int) -> Any:
        start = self._now()
        result = call()
        times_us[number] = self._since(start)
        return result

    def _now(self) -> Any:
        if self._device.type == "cuda":
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return self._clock_ns()

    def _since(self, start: Any) -> float:
        if self._device.type == "cuda":
            end = self._torch.cuda.Event(enable_timing=True)
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3
        return float(self._clock_ns() - start) / 1e3


def measure_lookups(
    lookups: Sequence[Lookup], *, device: str = "cpu", repeats: int = 5, threads: int = 1, seed: int = 0,
    batches: int = 2, memory: Any | None = None,
) -> list[LookupSample]:  # fmt: skip
    """Time lookups in turn, ``repeats`` rounds over all of them, so that a disturbance hits no one alone."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        benches = [
            LookupBench(lookup, device=device, batches=batches, seed=seed + i, memory=memory)
            for i, lookup in enumerate(lookups)
        ]
        return time_benches(benches, device=device, repeats=repeats)
    finally:
        torch.set_num_threads(before)


def time_benches(benches: Sequence[LookupBench], *, device: str, repeats: int) -> list[LookupSample]:
    """The rounds themselves, after one that is thrown away; nothing is allocated for tables here."""
    import torch

    from stepsight.run.memory import keep_memory, map_memory

    keep_memory()
    memory = torch.zeros(_SWEEP_BYTES // 4, device=device)
    map_memory(max((bench.workspace_bytes for bench in benches), default=0), device)
    times: list[list[FloatArray]] = [[] for _ in benches]
    for repeat in range(repeats + 1):
        for kept, bench in zip(times, benches, strict=True):
            measured = bench.run(repeat, lambda: memory.add_(1.0))
            if repeat:
                kept.append(measured)
    return [LookupSample(bench.lookup, np.array([kept])) for bench, kept in zip(benches, times, strict=True)]
