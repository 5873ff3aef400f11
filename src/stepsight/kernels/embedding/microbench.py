"""Measure a lookup here, on a CPU or a GPU, with one ``nn.EmbeddingBag`` call per table.

This is what ``stepsight run`` trains: a forward per table, a backward per table that leaves a
sparse gradient, and an update per table. Every table's own time is kept: their sum is the
lookup's. Batches are fresh in every repeat, and the caches are swept in between, so what is
measured is a training step and not a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from stepsight.errors import StepsightError
from stepsight.estimate import FloatArray
from stepsight.kernels.embedding.lookup import Lookup
from stepsight.kernels.embedding.sampling import bag_offsets, draw_indices

PHASES = ("forward", "backward", "update")
_SWEEP_BYTES = 96 << 20
"""Larger than the last-level cache of the processors at hand: reading it empties the caches."""


@dataclass(frozen=True, slots=True)
class LookupSample:
    """Repeated times of one lookup: ``times_us`` is repeats × phases × tables."""

    lookup: Lookup
    times_us: FloatArray

    def table_us(self, quantile: float = 0.25) -> FloatArray:
        """Phases × tables: a low quantile over the repeats, the statistic that repeats best."""
        return np.asarray(np.quantile(self.times_us, quantile, axis=0))

    def total_us(self, quantile: float = 0.25) -> FloatArray:
        """Per phase, over all tables."""
        return np.asarray(self.table_us(quantile).sum(axis=1))


class LookupBench:
    """One lookup with its weights and batches on a device, ready to be timed again and again."""

    def __init__(
        self, lookup: Lookup, *, device: str, batches: int, seed: int, memory: Any | None = None
    ) -> None:
        import torch

        self._torch, self._device, self.lookup = torch, torch.device(device), lookup
        rng = np.random.default_rng(seed)
        self._weights = list(self._make_weights(memory))
        self._batches = [self._make_batch(rng) for _ in range(batches)]

    def run(self, repeat: int) -> FloatArray:
        """One forward, backward and update: µs of each phase and table."""
        inputs = self._batches[repeat % len(self._batches)]
        times = np.zeros((len(PHASES), len(self._weights)))
        outputs = []
        for i, (weight, (indices, offsets, scale, _)) in enumerate(zip(self._weights, inputs, strict=True)):
            start = self._now()
            outputs.append(
                self._torch.nn.functional.embedding_bag(
                    indices, weight, offsets, mode="sum", sparse=True, per_sample_weights=scale
                )
            )
            times[0, i] = self._since(start)
        for i in reversed(range(len(outputs))):
            start = self._now()
            outputs[i].backward(inputs[i][3])
            times[1, i] = self._since(start)
        with self._torch.no_grad():
            for i, weight in enumerate(self._weights):
                start = self._now()
                weight.add_(weight.grad, alpha=-1e-3)
                times[2, i] = self._since(start)
                weight.grad = None
        return times

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
            yield flat.view(table.rows, table.dim).detach().requires_grad_()

    def _make_batch(self, rng: np.random.Generator) -> list[tuple[Any, Any, Any, Any]]:
        torch, batch = self._torch, []
        for table in self.lookup.tables:
            offsets = bag_offsets(table.batch, table.pooling, rng)
            indices = draw_indices(table.indices, table.rows, int(offsets[-1]), rng)
            scale = None
            if table.weighted:
                scale = torch.ones(len(indices), dtype=_torch_dtype(table.dtype), device=self._device)
            batch.append(
                (
                    torch.from_numpy(indices).to(self._device),
                    torch.from_numpy(offsets[:-1].copy()).to(self._device),
                    scale,
                    torch.ones(table.batch, table.dim, dtype=_torch_dtype(table.dtype), device=self._device),
                )
            )
        return batch

    def _now(self) -> Any:
        if self._device.type == "cuda":
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return perf_counter_ns()

    def _since(self, start: Any) -> float:
        if self._device.type == "cuda":
            end = self._torch.cuda.Event(enable_timing=True)
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3
        return float(perf_counter_ns() - start) / 1e3


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

    sweep = torch.zeros(_SWEEP_BYTES // 4, device=device)
    times: list[list[FloatArray]] = [[] for _ in benches]
    for repeat in range(repeats + 1):
        for kept, bench in zip(times, benches, strict=True):
            sweep.add_(1.0)
            measured = bench.run(repeat)
            if repeat:
                kept.append(measured)
    return [LookupSample(bench.lookup, np.array(kept)) for bench, kept in zip(benches, times, strict=True)]


def _torch_dtype(name: str) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]
