"""Which calls a script compiled: those inside a compiled function, and their backward pass.

Autograd numbers its nodes as the forward pass makes them, so the numbers handed out while a compiled
function ran tell its nodes in the backward pass.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch


class CompiledRegions:
    """Every outermost run of a compiled function is a graph with a number from 1 on; 0 is none.
    ``cuda_graphs`` are those that Inductor records as CUDA graphs and replays."""

    def __init__(self) -> None:
        self._depth = 0
        self._number = 0
        self._start = 0
        self._starts: list[int] = []
        self._ends: list[tuple[int, int]] = []
        self.cuda_graphs: set[int] = set()

    def enter(self, *, cuda_graph: bool = False) -> None:
        if not self._depth:
            self._number += 1
            if cuda_graph:
                self.cuda_graphs.add(self._number)
            self._start = torch.autograd._get_sequence_nr()
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._starts.append(self._start)
            self._ends.append((torch.autograd._get_sequence_nr(), self._number))

    def graph(self, node: Any) -> int:
        """The graph of a call that runs now, under this autograd node or none."""
        if self._depth:
            return self._number
        if node is None or not self._starts:
            return 0
        number = node._sequence_nr()
        at = bisect_right(self._starts, number) - 1
        if at < 0:
            return 0
        end, graph = self._ends[at]
        return graph if number < end else 0
