"""What compute and communication that overlap cost each other.

A collective under compute gives up some memory bandwidth and takes some SMs: `contention_of` states the
factors that the simulation stretches overlapped work by. Collectives on streams of their own also share their
rank's link: `stepsight.simulate.contention`.
"""

from __future__ import annotations

from dataclasses import replace

from stepsight.collectives.constants import COMM_UNDER_COMPUTE, COMPUTE_BESIDE_COMPUTE, COMPUTE_UNDER_COMM
from stepsight.hardware.spec import ContentionSpec, PlatformSpec

MEASURED_LINKS = ("nvlink_mesh", "nvswitch")


def contention_of(platform: PlatformSpec) -> ContentionSpec:
    """The slowdown factors of a platform, with where they come from."""
    if platform.host.synchronous:
        return ContentionSpec(source="nothing runs concurrently here")
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
