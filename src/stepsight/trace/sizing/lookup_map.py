"""Embedding kernels of a trace as lookups: FBGEMM's table-batched ones and nn.EmbeddingBag's."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from stepsight.kernels.embedding.traffic import LANE_VALUES, REGISTER_DIM, WARP_LANES
from stepsight.program.job import Kernel
from stepsight.tables.bags import traced_spread
from stepsight.tables.indices.distributions import UNKNOWN_INDICES
from stepsight.tables.lookup import Lookup, TableLookup
from stepsight.trace.linking.launches import NO_OP, Launch
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import Event
from stepsight.trace.rules import RULES
from stepsight.trace.sizing.sort_map import sort_kernel
from stepsight.trace.sizing.tensors import Tensor, tensors_of

if TYPE_CHECKING:
    from stepsight.trace.sizing.facts import Facts

_FORWARD = re.compile(
    r"(?:split|dense)_embedding\w*_forward|embedding_forward_split|EmbeddingBag_updateOutput"
)
_BACKWARD = re.compile(r"split_embedding\w*_backward\w*kernel|split_embedding_backward")
_SIDE = re.compile("cta_per_row|find_long_segments|grad_indice_weights|backward_count")
_BACKWARD_OP = re.compile(r"SplitLookupFunction|split_embedding_backward")
_LOOKUP_OP = re.compile(
    r"(?:split|dense)_embedding_codegen_(?:lookup|forward)|_embedding_bag$|SplitLookupFunction|SplitNoWeight"
)
_INSTANCE = re.compile(r"split_embedding\w*<([^(]*)>\(")
_SAMPLE_WEIGHTS = "grad_indice_weights"
"""The gradient of per-sample weights reads every row again, as a forward does."""
_WEIGHTS = (
    (re.compile("cta_per_row"), 60.0),
    (re.compile("warp_per_row"), 15.0),
    (re.compile("Onesweep|RadixSort(?!Histogram|ExclusiveSum)|linearize_index"), 4.0),
    (re.compile("ReduceByKey|DeviceScanKernel"), 3.0),
)
"""How the work of one backward lies on its kernels, roughly, in per cent (FBGEMM on an A100, 2022); only
their sum counts."""
_LITTLE = RULES.value("lookup_little")


@dataclass(slots=True)
class LookupBackward:
    """One backward as the trace shows it: what it looks up, and the work on all its kernels."""

    lookup: Lookup | None
    weight: float = 0.0


def lookup_kernel(facts: Facts, launch: Launch, op: Event, event: Event) -> Kernel | None:
    """The lookup behind an embedding kernel, if it is one and its sizes are known.

    The kernels of one backward (sort, updates of long and of short runs, bookkeeping) share its
    time: the model times a backward as a whole.
    """
    linked = facts.linked
    if not facts.has_lookups and not _is_forward(event.name):
        return None
    call = next((e for e in linked.chain(launch.op) if _looks_up(e.name)), op)
    if _is_forward(event.name):
        lookup = _from_forward(linked, call)
        return _kernel("embedding", call, _with_widest(lookup, event.name)) if lookup else None
    backward = facts.lookup_backwards.get(id(call))
    if backward is None or _by_itself(linked, launch):
        return None
    if backward.lookup is None:
        if _BACKWARD.search(event.name) and not _SIDE.search(event.name):
            return None
        whole = facts.calls.of(launch)
        sort = sort_kernel(event, beside=whole.kernels if whole else (), gpu=facts.gpu)
        return sort or Kernel.of("fill", operator="embedding_bookkeeping", bytes=1.0)
    if _SAMPLE_WEIGHTS in event.name:
        return _kernel("embedding", call, backward.lookup)
    part = replace(backward.lookup, part=_weight(event) / backward.weight)
    return _kernel("embedding_backward", call, part)


@lru_cache(maxsize=8192)
def _looks_up(op: str) -> bool:
    return bool(_LOOKUP_OP.search(op))


@lru_cache(maxsize=8192)
def _is_forward(kernel: str) -> bool:
    return bool(_FORWARD.search(kernel))


def _kernel(family: str, call: Event, lookup: Lookup) -> Kernel:
    return Kernel(family, (), lookup.tables[0].dtype, operator=call.name, lookup=lookup)


def has_lookups(linked: LinkedTrace) -> bool:
    """Whether any operator of the trace looks rows of tables up."""
    return any(map(_looks_up, linked.op_names))


def lookup_backwards(linked: LinkedTrace) -> dict[int, LookupBackward]:
    """Every backward of the trace by ``id`` of its call."""
    found: dict[int, LookupBackward] = {}
    for launch in linked.launches if has_lookups(linked) else ():
        call = next((e for e in linked.chain(launch.op) if _looks_up(e.name)), None)
        if call is None or not _BACKWARD_OP.search(call.name) or _by_itself(linked, launch):
            continue
        if id(call) not in found:
            found[id(call)] = LookupBackward(_from_backward(linked, call))
        one = found[id(call)]
        for event in launch.gpu:
            one.weight += _weight(event)
            one.lookup = _with_widest(one.lookup, event.name) if one.lookup else None
    return found


def _by_itself(linked: LinkedTrace, launch: Launch) -> bool:
    """An operator inside the backward (a fill, a copy) that has a rule of its own."""
    return linked.ops[launch.op].name.startswith("aten::") if launch.op != NO_OP else False


def _weight(event: Event) -> float:
    if event.name.startswith(("Mem", "Copy")) or _SAMPLE_WEIGHTS in event.name:
        return 0.0  # timed by themselves
    return next((weight for name, weight in _WEIGHTS if name.search(event.name)), _LITTLE)


def _optimizer(name: str) -> str:
    for known in ("rowwise_adagrad", "adagrad", "adam", "sgd"):
        if known in name:
            return known
    return "none" if "ense" in name else "sgd"


def _from_forward(linked: LinkedTrace, call: Event) -> Lookup | None:
    inputs = tensors_of(call)
    vectors = [t for t in inputs if len(t.shape) == 1]
    if call.name.endswith("_embedding_bag"):
        return _bag(inputs)
    weights = max((t.elements for t in vectors if t.dtype in ("fp32", "fp16", "bf16", "int8")), default=0)
    tables = _tables(vectors)
    found = _indices_and_offsets(vectors, tables) if tables else None
    if not weights or found is None:
        return None
    indices, offsets = found
    batch = max((offsets.elements - 1) // tables, 1)
    dim = _dim(linked, call, batch, tables)
    dtype = next((t.dtype for t in vectors if t.elements == weights), "fp32")
    # Per-sample weights are as many as indices.
    weighted = any(t.dtype == "fp32" and t.elements == indices.elements for t in vectors)
    found_tables = _table_lookups(tables, batch, indices.elements, dim, weights, dtype, weighted)
    return Lookup(found_tables, _optimizer(call.name), True)


def _tables(vectors: list[Tensor]) -> int:
    """The number of tables: the weights' offsets have it, D_offsets one more."""
    sizes = [t.elements for t in vectors if t.dtype.startswith("int")]
    for size in sizes:
        if size > 0 and size + 1 in sizes:
            return size
    return 0


def _indices_and_offsets(vectors: list[Tensor], tables: int) -> tuple[Tensor, Tensor] | None:
    """Two integer vectors side by side: the longest indices followed by one offset per bag and one."""
    whole = [t for t in vectors if t.dtype in ("int64", "int32")]
    pairs = [
        (first, second)
        for first, second in pairwise(whole)
        if second.elements > tables + 1 and (second.elements - 1) % tables == 0
    ]
    return max(pairs, key=lambda p: p[0].elements, default=None)


def _dim(linked: LinkedTrace, call: Event, batch: int, tables: int) -> float:
    """Mean embedding dim, from the gradient that comes back: batch × sum of dims."""
    for event in _gradients(linked):
        for tensor in tensors_of(event):
            if len(tensor.shape) == 2 and tensor.shape[0] == batch and tensor.shape[1] >= tables:
                width = tensor.shape[1] / tables
                if 4 <= width <= 2048:
                    return width
    return 64.0


def _gradients(linked: LinkedTrace) -> list[Event]:
    return [e for e in linked.ops if "SplitLookupFunction" in e.name and e.shapes()]


def _from_backward(linked: LinkedTrace, call: Event) -> Lookup | None:
    gradient = next((t for t in tensors_of(call) if len(t.shape) == 2), None)
    if gradient is None:
        return None
    batch, total_dim = gradient.shape
    for forward in linked.ops:
        if "_embedding_codegen_lookup" in forward.name:
            made = _from_forward(linked, forward)
            if (
                made
                and made.tables[0].batch == batch
                and abs(sum(t.dim for t in made.tables) / total_dim - 1) < 0.05
            ):
                return Lookup(made.tables, _optimizer(call.name), True)
    return None


def _table_lookups(
    tables: int, batch: int, lookups: int, dim: float, weights: float, dtype: str, weighted: bool
) -> tuple[TableLookup, ...]:
    """As many identical tables: a trace shows their sums only."""
    width = max(round(dim), 1)
    rows, spread = max(int(weights / (tables * dim)), 1), traced_spread(lookups, batch, tables)
    pooling = lookups / (batch * tables)
    one = TableLookup(rows, width, batch, pooling, UNKNOWN_INDICES, dtype, weighted, spread)
    return (one,) * tables


def _with_widest(lookup: Lookup, kernel: str) -> Lookup:
    """The same with one table as wide as the kernel is made for, where its tables are taken as alike."""
    widest, others = _widest(kernel), len(lookup.tables) - 1
    if widest <= REGISTER_DIM or not others or len(set(lookup.tables)) > 1:
        return lookup
    first = lookup.tables[0]
    rest = round((first.dim * (others + 1) - widest) / others)
    if rest < LANE_VALUES or rest > widest:
        return lookup
    return replace(lookup, tables=(replace(first, dim=widest), *(replace(first, dim=rest),) * others))


@lru_cache(maxsize=8192)
def _widest(kernel: str) -> int:
    """Values of the widest row that an instance of FBGEMM's kernels serves; 0 where its name does not tell.

    Its last numbers are the vectors of four that a thread holds and the threads of a row; old ones have the
    vectors alone, new ones, which also say whether there is a cache, the threads alone.
    """
    made = _INSTANCE.search(kernel)
    values = made[1].split(", ") if made else []
    numbers = [int(v.removesuffix("ul")) for v in values if v.removesuffix("ul").isdigit()]
    if not numbers or (len(numbers) == 1 and {"true", "false"} & set(values)):
        return 0
    return numbers[0] * (numbers[1] if len(numbers) > 1 else WARP_LANES) * LANE_VALUES


def _bag(inputs: list[Tensor]) -> Lookup | None:
    if len(inputs) < 3 or len(inputs[0].shape) != 2:
        return None
    weight, indices, offsets = inputs[0], inputs[1], inputs[2]
    batch = max(offsets.elements, 1)
    table = TableLookup(
        weight.shape[0], weight.shape[1], batch, indices.elements / batch, UNKNOWN_INDICES, weight.dtype
    )
    return Lookup((table,), "none", False)
