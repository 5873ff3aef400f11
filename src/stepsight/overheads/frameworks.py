"""What training frameworks cost the host for each kernel or collective they launch.

An operator of a condensed program stands for many real launches. The host's time for them follows from
the framework: its Python around a layer's forward pass, autograd's C++ in the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from stepsight.constants import area
from stepsight.overheads.tables import Overheads
from stepsight.program.job import HostTimes
from stepsight.records import read_toml, record

C = area("overheads")


@dataclass(frozen=True, slots=True)
class HostProfile:
    """µs per launch, Python and autograd included, by phase, on an H100-era host (`REFERENCE_US`).

    ``skew_us``: what a collective that compute waits for loses to every further rank of its group, because
    hosts are never in step. ``step_us``: work once per step that no launch covers. ``tensor_us``: the same
    for each parameter tensor in a rank's share of the optimizer state: ZeRO-1 loops over them in Python.
    ``micro_batch_us``: what a micro-batch costs besides its launches: fetching and broadcasting it, the
    schedule, the loss. ``basis``: what the figures come from; ``runs``: how many independent runs that were
    (zero: chosen).
    """

    forward_us: float
    backward_us: float
    optimizer_us: float = 6.0
    skew_us: float = 0.0
    step_us: float = 0.0
    tensor_us: float = 0.0
    micro_batch_us: float = 0.0
    applies_to: str = ""
    basis: str = ""
    runs: int = 0


MICRO_BATCH, STEP, TENSORS = "micro-batch", "step", "parameter tensors"
"""Phases of host work other than launches."""


def extra_us(name: str, phase: str) -> float:
    """Host work of a profile per micro-batch, per step or per parameter tensor; zero in other phases."""
    profile = profile_of(name)
    found = {MICRO_BATCH: profile.micro_batch_us, STEP: profile.step_us, TENSORS: profile.tensor_us}
    return found.get(phase, 0.0)


REFERENCE = "aten::add"
"""Hosts other than those for which the profiles are stated scale with T1 to T4 of this one operator."""


@cache
def profiles() -> Mapping[str, HostProfile]:
    """The shipped profiles by name (`defaults/host_profiles.toml`)."""
    with resources.as_file(resources.files("stepsight.overheads.defaults") / "host_profiles.toml") as path:
        tables = read_toml(path)
    return {name: record(HostProfile, table, f"host profile {name}") for name, table in tables.items()}


def profile_of(name: str) -> HostProfile:
    """The host work of a profile."""
    return profiles()[name]


def framework_times(overheads: Overheads, framework: str, phase: str, launches: int, shown: int) -> HostTimes:
    """T1–T5 of an operator that stands for ``launches`` and is shown as ``shown`` of them.

    Its kernels are launched with the first of them: host and device then work at the same time, as they do
    launch by launch.
    """
    profile = profile_of(framework)
    each = {"forward": profile.forward_us, "backward": profile.backward_us}.get(phase, profile.optimizer_us)
    each = extra_us(framework, phase) or each
    add = overheads.of(REFERENCE, launches=1)
    total = launches * each * (add.t1 + add.t2 + add.t3 + add.t4) / C.REFERENCE_US
    if not shown:
        return HostTimes(0.0, 0.0, 0.0, 0.0, total)
    first = total / max(launches, shown)
    return HostTimes(0.0, 0.0, total - shown * first, first, 0.0)
