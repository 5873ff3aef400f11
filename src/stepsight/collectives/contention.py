"""What shares a link or a GPU with a collective, and what that costs both.

Collectives on one link at once share its bandwidth; their latency floors overlap. A collective
under compute gives up some memory bandwidth and takes some SMs: `contention_of` states the
factors that the simulation stretches overlapped work by.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import ContentionSpec, PlatformSpec

COMPUTE_UNDER_COMM = 1.05
"""Kernels of 20 µs and more that ran both alone and wholly under NCCL kernels in one trace, weighted
by time: 1.06 on 4×V100 (29 kinds of kernel, TorchRec DLRM), 1.01 and 1.10 on A100 (21, production
DLRM; 15, ResNet-50 DDP), 1.01 on 8×H100 (2)."""
COMM_UNDER_COMPUTE = 1.13
"""Synced DDP all_reduces under backward on 4×V100 take 0.90 ms in the median where the same 33.6 MB
take 0.79 ms alone; without compute beside them 8×A100 all_reduces meet their curve (596 of 595 µs)."""
COMPUTE_BESIDE_COMPUTE = 1.67
"""Kernels that began while one with more blocks than fit ran on another stream of a 4×V100 (TorchRec DLRM,
142 of them, against the same kernels alone) took longer by 0.40 of the time both ran; on an A100 (production
DLRM) 0.54, one kernel. Beside kernels whose blocks all fit: −0.05 (16 of them)."""
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
