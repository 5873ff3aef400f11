"""Measure a lookup here, on a CPU or a GPU, with one ``embedding_bag`` call per table.

The operators are those that ``stepsight run`` trains with: a pooled forward per table, then a
backward per table that scatters the scaled row gradients into the weights. Every table's own
time is kept: their sum is the lookup's. Batches are fresh in every repeat, and the caches
are swept before each phase, as the dense part of a training step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.indices import IndexDistribution
from stepsight.kernels.embedding.lookup import Lookup, TableLookup

PHASES = ("forward", "backward")
LEARNING_RATE = 1e-3
_WARM = Lookup((TableLookup(8, 16, 4, 2, IndexDistribution.uniform()),))
"""A lookup of next to nothing, before what is timed."""
_SWEEP_BYTES = 96 << 20
"""Larger than the last-level cache of the processors at hand: reading it empties the caches."""


@dataclass(frozen=True, slots=True)
class LookupSample:
    """Repeated times of one lookup: ``times_us`` is passes × repeats × phases × tables.

    Every pass builds the tables anew: where memory comes to lie is part of the noise.
    """

    lookup: Lookup
    times_us: FloatArray

    def table_us(self, quantile: float = 0.0) -> FloatArray:
        """Phases × tables: the least over the repeats, the statistic that repeats best; mean over passes."""
        return np.asarray(np.quantile(self.times_us, quantile, axis=1).mean(axis=0))

    def total_us(self, quantile: float = 0.0) -> FloatArray:
        """Per phase, over all tables."""
        return np.asarray(self.table_us(quantile).sum(axis=1))

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
        self._weights = list(self._make_weights(memory))
        self._batches = [self._make_batch(rng, lookup) for _ in range(batches)]
        self._warm = (torch.zeros(8, 16, device=self._device), self._make_batch(rng, _WARM)[0])

    def run(self, repeat: int, sweep: Callable[[], object]) -> FloatArray:
        """One forward and one backward with its update: µs of each phase and table."""
        from stepsight.run.lookup import pooled, update_rows

        inputs = self._batches[repeat % len(self._batches)]
        warm_weight, warm_batch = self._warm
        sweep()
        pooled(warm_weight, warm_batch)  # the code is warm in a training loop, only the data is not
        times = np.zeros((len(PHASES), len(self._weights)))
        outputs = []
        for i, (weight, table) in enumerate(zip(self._weights, inputs, strict=True)):
            start = self._now()
            outputs.append(pooled(weight, table))
            times[0, i] = self._since(start)
        sweep()
        gradients = self._torch.cat(outputs, 1).split([w.shape[1] for w in self._weights], 1)
        update_rows(warm_weight, warm_batch, pooled(warm_weight, warm_batch), LEARNING_RATE)
        for i, (weight, table) in enumerate(zip(self._weights, inputs, strict=True)):
            start = self._now()
            update_rows(weight, table, gradients[i], LEARNING_RATE)
            times[1, i] = self._since(start)
        return times

    @property
    def workspace_bytes(self) -> int:
        """More than a run allocates: outputs, gradients, a table's expanded gradient and its sort."""
        outputs = sum(t.batch * t.dim for t in self.lookup.tables) * 4
        widest = max((t.lookups * (t.dim * 4 + 64) for t in self.lookup.tables), default=0.0)
        return int(4 * outputs + 2 * widest)

    def _make_weights(self, memory: Any | None) -> Iterator[Any]:
        used = 0
        for table in self.lookup.tables:
            size = table.rows * table.dim
            if memory is None:
                flat = self._torch.zeros(size, dtype=_torch_dtype(table.dtype), device=self._device)
            elif used + size > memory.numel():
                raise StepsightError(f"the lookup's tables need more than the {memory.numel()} values given")
            else:
                flat = memory[used : used + size]
            used += size
            yield flat.view(table.rows, table.dim)

    def _make_batch(self, rng: np.random.Generator, lookup: Lookup) -> list[Any]:
        from stepsight.run.lookup import TableBatch

        return [TableBatch.sample(lookup, i, rng, str(self._device)) for i in range(len(lookup.tables))]

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


def _torch_dtype(name: str) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]
