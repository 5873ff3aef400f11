"""What shares a link or a GPU with a collective, and what that costs both.

Collectives on one link at once share its bandwidth; their latency floors overlap. A collective
under compute gives up some memory bandwidth and takes some SMs: `contention_of` states the
factors that the simulation stretches overlapped work by.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepsight.collectives.constants import COMM_UNDER_COMPUTE, COMPUTE_BESIDE_COMPUTE, COMPUTE_UNDER_COMM
from stepsight.estimate import FloatArray
from stepsight.hardware.spec import ContentionSpec, PlatformSpec

MEASURED_LINKS = ("nvlink_mesh", "nvswitch")


def contention_of(platform: PlatformSpec) -> ContentionSpec:
    """The slowdown factors of a platform, with where they come from."""
    if platform.host.synchronous:
        return ContentionSpec(source="nothing runs beside anything here")
    streams = ContentionSpec(
        compute_beside_compute=COMPUTE_BESIDE_COMPUTE, source="profiler traces of DLRM training on V100"
    )
    if platform.ranks == 1:
        return streams
    measured = "profiler traces of DLRM and CNN training on V100, A100 and H100 with NVLink"
    if platform.link.kind not in MEASURED_LINKS:
        measured = f"assumed as on NVLink: {measured}"
    return replace(
        streams, compute_under_comm=COMPUTE_UNDER_COMM, comm_under_compute=COMM_UNDER_COMPUTE, source=measured
    )


def sharing_a_link(alone_us: npt.ArrayLike, floor_us: npt.ArrayLike) -> FloatArray:
    """When each of several collectives that start together on one link is done.

    ``alone_us`` are their times alone, ``floor_us`` their latency floors. While k of them move
    data each gets 1/k of the link, so one is done when all smaller ones are and the larger
    ones have moved as much as it has.
    """
    alone = np.atleast_1d(np.asarray(alone_us, dtype=np.float64))
    floor = np.minimum(np.atleast_1d(np.asarray(floor_us, dtype=np.float64)), alone)
    work = alone - floor
    return np.asarray(floor + np.minimum(work[:, None], work[None, :]).sum(axis=1), dtype=np.float64)
