"""What sizing knows of a whole trace, computed once: a step is sized alike whichever was looked at first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.sizing.calls import Calls
from stepsight.trace.sizing.lookup_map import LookupBackward, has_lookups, lookup_backwards
from stepsight.trace.sizing.precision import common_dtype


@dataclass(frozen=True)
class Facts:
    """A linked trace and, made when first asked for, what its kernels tell about each other."""

    linked: LinkedTrace

    @cached_property
    def gpu(self) -> GpuSpec | None:
        """The GPU that the trace names, where the catalogue has it."""
        entry = find_gpu(self.linked.trace.device)
        return entry.gpu if entry else None

    @cached_property
    def calls(self) -> Calls:
        """Which kernels one library call launched together."""
        return Calls(self.linked)

    @cached_property
    def has_lookups(self) -> bool:
        """Whether any operator looks rows of tables up."""
        return has_lookups(self.linked)

    @cached_property
    def lookup_backwards(self) -> dict[int, LookupBackward]:
        """Every embedding backward by ``id`` of its call."""
        return lookup_backwards(self.linked)

    @cached_property
    def dtype(self) -> str:
        """What the trace's matrix products compute in."""
        return common_dtype(self.linked)
