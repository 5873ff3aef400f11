"""What training frameworks cost the host for each kernel or collective they launch.

An operator of a condensed program stands for many real launches. The host's time for them follows from
the framework: its Python around a layer's forward pass, autograd's C++ behind the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepsight.overheads.constants import REFERENCE_US
from stepsight.overheads.tables import Overheads
from stepsight.program.job import HostTimes


@dataclass(frozen=True, slots=True)
class HostProfile:
    """µs a launch, Python and autograd included, by phase, on an H100-era host (`REFERENCE_US`).

    ``skew_us``: what a collective that compute waits for loses to every further rank of its group, because
    hosts are never in step. ``step_us``: work once a step that no launch covers (loops over parameters around
    clipping and the update). ``micro_batch_us``: what a micro-batch costs beside its launches: fetching and
    broadcasting it, the schedule, the loss.
    """

    forward_us: float
    backward_us: float
    optimizer_us: float = 6.0
    skew_us: float = 0.0
    step_us: float = 0.0
    micro_batch_us: float = 0.0


REFERENCE = "aten::add"
"""Hosts other than those for which the profiles are stated scale with T1 to T4 of this one operator."""

PROFILES = {
    "eager": HostProfile(20.0, 20.0),
    "compiled": HostProfile(10.0, 7.0),
    "megatron": HostProfile(14.0, 8.0),
    "megatron-deepspeed": HostProfile(52.0, 52.0, 100.0, skew_us=25.0, micro_batch_us=500.0),
    "nanotron": HostProfile(110.0, 110.0, step_us=20e3),
    "torchtitan": HostProfile(10.0, 7.0),
    "jax": HostProfile(10.0, 7.0),
    "deepspeed": HostProfile(20.0, 20.0),
    "llm-foundry": HostProfile(14.0, 8.0),
    "internevo": HostProfile(14.0, 8.0),
    "scaling": HostProfile(14.0, 8.0),
    "hf": HostProfile(20.0, 20.0),
}
"""What each rests on stands in `constants.PROFILE_BASES`."""


def profile_of(framework: str) -> HostProfile:
    """The host work of a framework."""
    return PROFILES[framework]


def framework_times(overheads: Overheads, framework: str, phase: str, launches: int, shown: int) -> HostTimes:
    """T1–T5 of an operator that stands for ``launches`` and is shown as ``shown`` of them."""
    profile = PROFILES[framework]
    each = {"forward": profile.forward_us, "backward": profile.backward_us}.get(phase, profile.optimizer_us)
    add = overheads.of(REFERENCE, launches=1)
    total = launches * each * (add.t1 + add.t2 + add.t3 + add.t4) / REFERENCE_US
    share = total / max(shown, 1)
    return HostTimes(0.0, 0.0, 0.0, share, 0.0) if shown else HostTimes(0.0, 0.0, 0.0, 0.0, total)
