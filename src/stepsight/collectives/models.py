"""The collectives of one platform: a time for any kind, message and group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepsight.collectives.roofline import Line, bus_factor, roofline
from stepsight.collectives.topology import GroupShape, group_shape
from stepsight.errors import StepsightError
from stepsight.estimate import Estimate, Estimates, FloatArray, Source
from stepsight.platform.spec import PlatformSpec
from stepsight.workload.program import COLLECTIVE_KINDS

ROOFLINE_SPREAD = 0.5
"""Data-sheet bandwidth with a stated efficiency is off by about this much (see docs/accuracy.md)."""


@dataclass(frozen=True, slots=True)
class CollectiveModels:
    """Prices collectives on one platform.

    ``estimate`` answers for balanced collectives; an all_to_allv is priced by the bytes that
    each rank really sends and receives. A group of one rank is free.
    """

    platform: PlatformSpec
    _lines: dict[tuple[str, GroupShape], Line] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def for_platform(cls, spec: PlatformSpec) -> CollectiveModels:
        return cls(spec)

    def estimate(self, kind: str, bytes: npt.ArrayLike, ranks: Sequence[int]) -> Estimates:
        """Times of one kind of collective over one group, for many message sizes."""
        sizes = np.atleast_1d(np.asarray(bytes, dtype=np.float64))
        shape = group_shape(ranks, self.platform)
        if shape.ranks == 1:
            return Estimates.uniform(np.zeros(len(sizes)), Source.ROOFLINE, 0.0)
        times = self._line(kind, shape).time_us(sizes)
        return Estimates.uniform(times, Source.ROOFLINE, ROOFLINE_SPREAD, "data-sheet bandwidth")

    def alltoallv_times(
        self, sent_bytes: npt.ArrayLike, received_bytes: npt.ArrayLike, ranks: Sequence[int]
    ) -> FloatArray:
        """When each rank is done with its part of an all_to_allv, in µs after the last arrival.

        Both arrays are ``[..., n]``: what each rank sends to and receives from the others,
        what stays local not counted. The busier direction decides.
        """
        busiest = np.maximum(
            np.asarray(sent_bytes, dtype=np.float64), np.asarray(received_bytes, dtype=np.float64)
        )
        shape = group_shape(ranks, self.platform)
        if shape.ranks == 1:
            return np.zeros_like(busiest)
        balanced = busiest / bus_factor("all_to_all", shape.ranks)
        return self._line("all_to_all", shape).time_us(balanced)

    def estimate_alltoallv(
        self, send_bytes: npt.ArrayLike, ranks: Sequence[int]
    ) -> tuple[FloatArray, Estimate]:
        """Per-rank finish times and the time of the whole all_to_allv, from its send matrix."""
        matrix = np.asarray(send_bytes, dtype=np.float64)
        n = len(ranks)
        if matrix.shape != (n, n):
            raise StepsightError(f"the send matrix is {matrix.shape}, but the group has {n} ranks")
        remote = matrix - np.diag(np.diag(matrix))
        finish = self.alltoallv_times(remote.sum(axis=1), remote.sum(axis=0), ranks)
        whole = self.estimate("all_to_all", [matrix.sum(axis=1).max()], ranks)[0]
        return finish, Estimate(float(finish.max()), whole.source, whole.spread, whole.note)

    def _line(self, kind: str, shape: GroupShape) -> Line:
        if kind not in COLLECTIVE_KINDS:
            raise StepsightError(f"unknown collective {kind!r}; one of {', '.join(COLLECTIVE_KINDS)}")
        key = (kind, shape)
        if key not in self._lines:
            self._lines[key] = roofline(kind, shape, self.platform)
        return self._lines[key]
