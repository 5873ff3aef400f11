"""Embedding kernels of a trace as lookups: FBGEMM's table-batched ones and nn.EmbeddingBag's.

The model times a backward as a whole, so its kernels (sort, updates of long and of short runs, bookkeeping)
share that time in proportion to what each took.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from itertools import pairwise

from stepsight.program.aten.call import TensorFact
from stepsight.program.job import Kernel
from stepsight.tables.bags import traced_spread
from stepsight.tables.indices.distributions import UNKNOWN_INDICES
from stepsight.tables.lookup import Lookup, TableLookup
from stepsight.trace.events import Event
from stepsight.trace.launches import NO_OP, Launch
from stepsight.trace.link import LinkedTrace
from stepsight.trace.operators import tensors_of

_FORWARD = re.compile(
    r"(?:split|dense)_embedding\w*_forward|embedding_forward_split|EmbeddingBag_updateOutput"
)
_BACKWARD_OP = re.compile(r"SplitLookupFunction|split_embedding_backward")
_LOOKUP_OP = re.compile(
    r"(?:split|dense)_embedding_codegen_(?:lookup|forward)|_embedding_bag$|SplitLookupFunction|SplitNoWeight"
)
_SAMPLE_WEIGHTS = "grad_indice_weights"
"""The gradient of per-sample weights reads every row again, as a forward does."""
_WIDTHS = (4, 2048)
"""Embedding dimensions that FBGEMM serves."""
_AGREE = 0.05
"""A backward belongs to the forward whose dimensions add up to its gradient's, within this share."""


class Lookups:
    """The lookups of a linked trace."""

    def __init__(self, linked: LinkedTrace) -> None:
        self._ops, self._parent = linked.ops, linked.parent
        self._any = any(map(_looks_up, linked.op_names))
        self._gradients = [
            t.shape for op in linked.ops if "SplitLookupFunction" in op.name for t in _matrices(op)
        ]
        """Gradients that come back: batch × the sum of embedding dims."""
        self._forwards = [
            made
            for op in linked.ops
            if "_embedding_codegen_lookup" in op.name and (made := self._from_forward(op)) is not None
        ]
        self._backward_us: dict[int, float] = defaultdict(float)
        """By operator, the time of a backward's own kernels."""
        for launch in linked.launches if self._any else ():
            op = self._op(launch)
            if op != NO_OP and _BACKWARD_OP.search(linked.ops[op].name) and not self._by_itself(launch):
                self._backward_us[op] += sum(0.0 if _timed_alone(e) else e.dur for e in launch.gpu)
        self._backwards = {op: self._from_backward(linked.ops[op]) for op in self._backward_us}

    def kernel(self, launch: Launch, event: Event) -> tuple[Kernel | None, float]:
        """The lookup that an embedding kernel works on and its share of it; None for other kernels, and where
        the sizes are not known."""
        forward = _is_forward(event.name)
        if not self._any and not forward:
            return None, 1.0
        op = self._op(launch)
        if forward:
            call = self._ops[op if op != NO_OP else launch.op]
            lookup = self._from_forward(call)
            return (_kernel("embedding", call, lookup) if lookup else None), 1.0
        lookup, total_us = self._backwards.get(op), self._backward_us.get(op, 0.0)
        if lookup is None or self._by_itself(launch) or event.name.startswith(("Mem", "Copy")):
            return None, 1.0
        if _SAMPLE_WEIGHTS in event.name:
            return _kernel("embedding", self._ops[op], lookup), 1.0
        share = event.dur / total_us if total_us > 0 else 1.0
        return _kernel("embedding_backward", self._ops[op], lookup), share

    def _op(self, launch: Launch) -> int:
        """The operator around a launch that looks rows up."""
        op = launch.op
        while op != NO_OP and not _looks_up(self._ops[op].name):
            op = self._parent[op]
        return op

    def _by_itself(self, launch: Launch) -> bool:
        """An operator inside the backward (a fill, a copy) that is a call of its own."""
        return launch.op != NO_OP and self._ops[launch.op].name.startswith("aten::")

    def _from_forward(self, call: Event) -> Lookup | None:
        inputs = tensors_of(call)
        if call.name.endswith("_embedding_bag"):
            return _bag(inputs)
        vectors = [t for t in inputs if len(t.shape) == 1]
        weights = max((t.elements for t in vectors if t.dtype in ("fp32", "fp16", "bf16", "int8")), default=0)
        tables = _tables(vectors)
        found = _indices_and_offsets(vectors, tables) if tables else None
        if not weights or found is None:
            return None
        indices, offsets = found
        batch = max((offsets.elements - 1) // tables, 1)
        dim = self._dim(batch, tables)
        if dim is None:
            return None
        dtype = next((t.dtype for t in vectors if t.elements == weights), "fp32")
        # Per-sample weights are as many as indices.
        weighted = any(t.dtype == "fp32" and t.elements == indices.elements for t in vectors)
        rows = max(int(weights / (tables * dim)), 1)
        pooling, spread = indices.elements / (batch * tables), traced_spread(indices.elements, batch, tables)
        one = TableLookup(rows, max(round(dim), 1), batch, pooling, UNKNOWN_INDICES, dtype, weighted, spread)
        # As many identical tables: a trace shows their sums only.
        return Lookup((one,) * tables, _optimizer(call.name), True)

    def _dim(self, batch: int, tables: int) -> float | None:
        """Mean embedding dim."""
        widths = (columns / tables for rows, columns in self._gradients if rows == batch)
        return next((width for width in widths if _WIDTHS[0] <= width <= _WIDTHS[1]), None)

    def _from_backward(self, call: Event) -> Lookup | None:
        for batch, total_dim in (t.shape for t in _matrices(call)[:1]):
            for forward in self._forwards:
                found_dim = sum(t.dim for t in forward.tables)
                if forward.tables[0].batch == batch and abs(found_dim - total_dim) < _AGREE * total_dim:
                    return Lookup(forward.tables, _optimizer(call.name), True)
        return None


def _matrices(op: Event) -> list[TensorFact]:
    return [t for t in tensors_of(op) if len(t.shape) == 2]


@lru_cache(maxsize=8192)
def _looks_up(op: str) -> bool:
    return bool(_LOOKUP_OP.search(op))


@lru_cache(maxsize=8192)
def _is_forward(kernel: str) -> bool:
    return bool(_FORWARD.search(kernel))


def _timed_alone(event: Event) -> bool:
    return event.name.startswith(("Mem", "Copy")) or _SAMPLE_WEIGHTS in event.name


def _kernel(family: str, call: Event, lookup: Lookup) -> Kernel:
    return Kernel(family, (), lookup.tables[0].dtype, operator=call.name, lookup=lookup)


def _optimizer(name: str) -> str:
    for known in ("rowwise_adagrad", "adagrad", "adam", "sgd"):
        if known in name:
            return known
    return "none" if "ense" in name else "sgd"


def _tables(vectors: list[TensorFact]) -> int:
    """The number of tables: the weights' offsets have it, D_offsets one more."""
    sizes = [t.elements for t in vectors if t.dtype.startswith("int")]
    return next((size for size in sizes if size > 0 and size + 1 in sizes), 0)


def _indices_and_offsets(vectors: list[TensorFact], tables: int) -> tuple[TensorFact, TensorFact] | None:
    """Two integer vectors in a row: the longest indices followed by one offset per bag and one."""
    pairs = [
        (first, second)
        for first, second in pairwise(t for t in vectors if t.dtype in ("int64", "int32"))
        if second.elements > tables + 1 and (second.elements - 1) % tables == 0
    ]
    return max(pairs, key=lambda p: p[0].elements, default=None)


def _bag(inputs: list[TensorFact]) -> Lookup | None:
    if len(inputs) < 3 or len(inputs[0].shape) != 2:
        return None
    weight, indices, offsets = inputs[0], inputs[1], inputs[2]
    batch = max(offsets.elements, 1)
    table = TableLookup(
        weight.shape[0], weight.shape[1], batch, indices.elements / batch, UNKNOWN_INDICES, weight.dtype
    )
    return Lookup((table,), "none", False)
