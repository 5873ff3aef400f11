"""A batch of kernels in parts: which variant each is, and the answers of the parts back in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stepsight.estimate import Estimates, FloatArray
from stepsight.kernels.columns import Batch
from stepsight.kernels.stream_costs import VARIANTS, plain_name


def scatter(parts: Iterable[tuple[Batch, Estimates]], n: int) -> Estimates:
    """Answers of many batches back in the order of the kernels they came from."""
    return put_together([(batch.positions, answer) for batch, answer in parts], n)


def put_together(parts: Sequence[tuple[np.typing.NDArray[np.int64], Estimates]], n: int) -> Estimates:
    """Answers with the places that they belong to, as the answer of ``n`` kernels."""
    if len(parts) == 1 and len(parts[0][0]) == n and (n == 0 or parts[0][0][-1] == n - 1):
        return parts[0][1]
    time_us, spread = np.zeros(n), np.zeros(n)
    source = np.zeros(n, dtype=np.int64)
    notes: dict[int, str] = {}
    for at, answer in parts:
        time_us[at], source[at], spread[at] = answer.time_us, answer.source, answer.spread
        if answer.notes:
            where = at.tolist()
            notes.update(zip(map(where.__getitem__, answer.notes), answer.notes.values(), strict=True))
    return Estimates(time_us, source, spread, notes)


def variants(batch: Batch) -> list[tuple[str, np.typing.NDArray[np.int64]]]:
    """Which measured variant each kernel is: a GEMM is batched or not, some streams stand apart."""
    everything = np.arange(len(batch))
    if batch.family != "gemm":
        known = {name: plain_name(name) for name in set(batch.names)}
        apart = {plain for plain in known.values() if (batch.family, plain) in VARIANTS}
        if not apart:
            return [("", everything)]
        if len(known) == 1:
            return [(apart.pop(), everything)]
        names = np.array([known[name] for name in batch.names])
        groups = [(name, everything[names == name]) for name in sorted(apart)]
        return [*groups, ("", everything[~np.isin(names, list(apart))])]
    batched: FloatArray = batch.dims["batch"]
    many = batched > 1
    if not batch.alike or batch.names[0] == "bmm":
        many = many | batch.where_name(lambda name: name == "bmm")
    return [("bmm", everything[many]), ("linear", everything[~many])]
