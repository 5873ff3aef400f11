"""The lookups of a part of a table's rows, as the whole table's lookups seen through a hash.

Rows are spread over ranks without regard to how popular they are, so a part holding a share
of the rows sees that share of every popularity: the same reuse, the share of the distinct
rows, and a cache of c rows serves it as one of c / share rows would serve the whole table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.indices.stats import IndexStats


@dataclass(frozen=True, slots=True)
class RowPart(IndexDistribution):
    """A distribution's share on some of ``whole_rows`` rows."""

    whole_rows: int = 1

    @classmethod
    def of(cls, whole: IndexDistribution, rows: int) -> RowPart:
        return cls(
            whole.kind, whole.exponent, whole.fraction, whole.probability, whole.path, whole.table,
            whole.ordered, rows,
        )  # fmt: skip

    def stats(self, rows: int, lookups: float) -> IndexStats:
        """Statistics of the part, taken from the whole table's."""
        share = rows / self.whole_rows
        whole = IndexDistribution(
            self.kind, self.exponent, self.fraction, self.probability, self.path, self.table
        ).stats(self.whole_rows, round(lookups / share, 3))
        return replace(
            whole,
            rows=rows,
            lookups=whole.lookups * share,
            unique_rows=whole.unique_rows * share,
            capacity_rows=whole.capacity_rows * share,
            window=whole.window * share,
        )
