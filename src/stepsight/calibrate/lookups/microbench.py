"""Measure a lookup here with an operator of `operators`: a forward, then a backward with its update.

Every call's own time is kept (a table's, or that of all tables at once): their sum is the
lookup's. Batches are fresh in every repeat, and the caches are swept before each phase, as
the dense part of a training step does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

import msgspec
import numpy as np
import torch

from stepsight.calibrate.lookups.operators import OPERATORS
from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.estimate import FloatArray
from stepsight.inputs import read_bytes
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


MOST_TABLES, MOST_POOLING = 30, 100
ROWS, BATCH = (64, 4_000_000), (256, 8192)
DIMS, ODD_DIMS = (16, 32, 64, 128, 256), (24, 48, 96, 160, 192)
MOST_VALUES = 650_000_000
"""Values in all tables of a lookup: 2.6 GB of fp32."""
MOST_LOOKED_UP = 120_000_000
"""Values looked up in one pass: half a gigabyte, so that a repeat takes about a second at most."""


def random_lookups(sets: int, batches: int, seed: int) -> list[Lookup]:
    """``sets`` random sets of tables, each looked up with ``batches`` random batch sizes."""
    rng = np.random.default_rng(seed)
    lookups = []
    for _ in range(sets):
        tables = _random_set(rng)
        width = sum(dim * pooling for _, dim, pooling, _ in tables)
        most = min(BATCH[1], MOST_LOOKED_UP / width)
        for _ in range(batches):
            batch = int(_between(rng, BATCH[0], most))
            if rng.random() < 0.5:
                batch = min(2 ** round(np.log2(batch)), int(most))
            lookups.append(Lookup(tuple(TableLookup(r, d, batch, p, i) for r, d, p, i in tables)))
    return lookups


def _random_set(rng: np.random.Generator) -> list[tuple[int, int, float, IndexDistribution]]:
    count = round(_between(rng, 1, MOST_TABLES + 0.49))
    tables = [_random_table(rng) for _ in range(count)]
    while sum(rows * dim for rows, dim, _, _ in tables) > MOST_VALUES:
        largest = max(range(len(tables)), key=lambda i: tables[i][0] * tables[i][1])
        rows, dim, pooling, indices = tables[largest]
        tables[largest] = (rows // 2, dim, pooling, indices)
    while sum(dim * pooling for _, dim, pooling, _ in tables) * 2 * BATCH[0] > MOST_LOOKED_UP:
        tables.pop()
    return tables


def _random_table(rng: np.random.Generator) -> tuple[int, int, float, IndexDistribution]:
    rows = int(_between(rng, *ROWS))
    dim = int(rng.choice(DIMS if rng.random() < 0.85 else ODD_DIMS))
    return rows, dim, float(round(_between(rng, 1, MOST_POOLING))), _random_indices(rng)


def _random_indices(rng: np.random.Generator) -> IndexDistribution:
    kind = rng.random()
    if kind < 0.2:
        return IndexDistribution.uniform()
    if kind < 0.85:
        return IndexDistribution.zipf(round(float(rng.uniform(0.4, 1.3)), 2))
    return IndexDistribution.hot(
        round(float(_between(rng, 1e-4, 1e-1)), 5), round(float(rng.uniform(0.3, 0.95)), 2)
    )


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


class _Table(msgspec.Struct):
    rows: int
    dim: int
    batch: int
    pooling: float
    indices: Any
    dtype: str = "fp32"


class _Sample(msgspec.Struct):
    tables: list[_Table]
    times_us: list[list[list[list[float]]]]
    optimizer: str = "sgd"
    operator: str = ""


class _File(msgspec.Struct):
    caches: list[float]
    samples: list[_Sample]


def write_samples(path: Path, samples: Sequence[LookupSample], caches: Sequence[float]) -> None:
    """Write samples with the caches of the processor they were measured on."""
    records = [
        _Sample(
            [
                _Table(t.rows, t.dim, t.batch, t.pooling, t.indices.value, t.dtype)
                for t in sample.lookup.tables
            ],
            np.round(sample.times_us, 2).tolist(),
            sample.lookup.optimizer,
            sample.lookup.operator,
        )
        for sample in samples
    ]
    write_whole(path, msgspec.json.encode(_File(list(caches), records)))


def read_samples(path: Path) -> tuple[list[LookupSample], tuple[float, ...]]:
    """Samples and caches of a file that `write_samples` wrote."""
    content = read_bytes(path, "measure some first")
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), f"not a file of measured lookups ({error})", "measure again") from None
    samples = []
    for number, record in enumerate(file.samples):
        where = f"{path}: samples[{number}]"
        tables = tuple(
            TableLookup(t.rows, t.dim, t.batch, t.pooling, IndexDistribution.parse(t.indices, where), t.dtype)
            for t in record.tables
        )
        lookup = Lookup(tables, record.optimizer, operator=record.operator)
        samples.append(LookupSample(lookup, np.array(record.times_us)))
    return samples, tuple(file.caches)
