"""Tokens to their experts where a token goes once to a node, as DeepEP and HybridEP send them.

It crosses the network once for every node that holds some of its experts, to the GPU of the same place there,
which passes it on to the others inside the node. Both run at once, so that the slower one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepsight.collectives.topology import group_shape
from stepsight.estimate import Estimate
from stepsight.program.job import Copies

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels
    from stepsight.collectives.site import SiteCollectives

KIND = "all_to_all"


def dispatched(
    models: CollectiveModels | SiteCollectives, bytes_: float, copies: Copies, ranks: Sequence[int]
) -> Estimate:
    """An all_to_all of ``bytes_``, all copies counted, whose rows are sent as `Copies` says."""
    shape, each = group_shape(ranks, models.platform), bytes_ / copies.count
    to_ranks = each * copies.reached(shape.ranks)
    if shape.inside_a_node:
        return models.estimate(KIND, [to_ranks], ranks)[0]
    per_node = models.platform.gpus_per_node
    node = [rank for rank in ranks if rank // per_node == ranks[0] // per_node]
    over = models.estimate(KIND, [each * copies.reached(shape.nodes)], ranks)[0]
    inside = models.estimate(KIND, [to_ranks], node)[0]
    return max(over, inside, key=lambda e: e.time_us)
