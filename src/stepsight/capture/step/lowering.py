"""The lowering table with what a capture knows besides: precision, bags of embeddings, assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.capture.assumptions import Assumptions
from stepsight.program.aten.call import AtenCall, Lowered, Precision
from stepsight.program.aten.table import lower
from stepsight.program.job import Kernel
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup

_BAGS = ("_embedding_bag", "_embedding_bag_forward_only")


@dataclass(frozen=True, slots=True)
class Lowering:
    """Call it with a call."""

    precision: Precision
    assumptions: Assumptions

    def __call__(self, call: AtenCall) -> Lowered:
        if call.name in _BAGS:
            return Lowered((self._bag(call),))
        if call.name.startswith("_embedding_bag") and call.name.endswith("backward"):
            return self._bag_backward(call)
        return lower(call, self.precision)

    def _bag(self, call: AtenCall) -> Kernel:
        weight, indices, offsets = (call.arguments[n] for n in ("weight", "indices", "offsets"))
        closing = bool(call.get("include_last_offset", False))
        batch = max(offsets.elements - closing, 1)
        spread = self._rows()
        table = TableLookup(
            weight.shape[0], weight.shape[1], batch, indices.elements / batch, spread, weight.dtype
        )
        return Kernel("embedding", dtype="fp32", operator="lookup", lookup=Lookup((table,), "none", False))

    def _rows(self) -> IndexDistribution:
        zipf = self.assumptions.zipf
        return IndexDistribution.zipf(zipf) if zipf else IndexDistribution.uniform()

    def _bag_backward(self, call: AtenCall) -> Lowered:
        gradient, indices = call.arguments["grad"], call.arguments["indices"]
        rows = call.get("num_weights", 1)
        count = indices.elements
        spread = Kernel.of("scatter", gradient.dtype, rows=count, cols=gradient.shape[-1], table_rows=rows)
        return Lowered((Kernel.of("sort", "int64", elements=max(count, 1)), spread))
