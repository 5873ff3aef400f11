"""Platforms and messages that the collectives' tests speak of, as plain figures."""

from __future__ import annotations

import numpy as np

from stepsight.estimate import FloatArray
from stepsight.hardware.spec import GpuSpec, HostSpec, LinkSpec, PlatformSpec


def platform(
    gpu: str = "A100-SXM4-40G",
    gpus: int = 8,
    nodes: int = 1,
    link: str = "nvswitch",
    gbps: float = 300.0,
    nic_gbps: float = 25.0,
) -> PlatformSpec:
    """A platform with the given GPU name and links; everything else does not matter here."""
    spec = GpuSpec(gpu, "", "", 108, 1410, 40, 1555, 40, 4000, {"fp32": 19.5}, 24.0)
    nic = LinkSpec("infiniband", nic_gbps, 5.0) if nodes > 1 else None
    return PlatformSpec("test", spec, gpus, nodes, LinkSpec(link, gbps, 4.0), nic, HostSpec("host"))


def balanced_send_bytes(bytes_per_rank: float, ranks: int) -> FloatArray:
    """The send matrix of a balanced all_to_all."""
    return np.full((ranks, ranks), bytes_per_rank / ranks)
