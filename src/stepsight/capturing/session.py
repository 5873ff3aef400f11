"""One process's capture: the fake GPU, the recorder and the process group, put together and taken in turn."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from stepsight.capturing.boundaries import Batches, HostProfile, StepBoundaries
from stepsight.capturing.calls import CallRecord, StepRecords
from stepsight.capturing.device import FakeGpu, MemoryFigures, install_device
from stepsight.capturing.files import intercept
from stepsight.capturing.groups import World, install_groups
from stepsight.capturing.guard import device_for_cpp, install_guard, install_meta_answer, meant
from stepsight.capturing.memory import Liveness, MemoryUse, Workspaces, memory_use
from stepsight.capturing.operators import (
    install_attention,
    install_libraries,
    install_old_defaults,
    install_operators,
)
from stepsight.capturing.recorder import Recorder
from stepsight.capturing.request import Assumptions
from stepsight.capturing.step import Samples
from stepsight.capturing.supported import run_self_test
from stepsight.capturing.tensors import install_modules, install_tensors
from stepsight.capturing.values import Values, install_checks, install_routing
from stepsight.hardware.spec import USABLE_SHARE
from stepsight.program.allocator import CachingAllocator
from stepsight.program.aten.call import Precision
from stepsight.workload.memory import CONTEXT_BYTES

COMPILED = (
    "torch.compile: captured eagerly; a compiled step launches fewer kernels and moves less memory, so the "
    "step is an upper bound"
)

WITHOUT_GUARD = (
    "captured without a device guard: DistributedDataParallel may copy gradients that a GPU would not"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What to capture. ``steps`` optimizer steps after ``warmup`` others are recorded as one program."""

    gpu: FakeGpu
    rank: int = 0
    world: int = 1
    per_node: int = 8
    warmup: int = 2
    steps: int = 1
    assumptions: Assumptions = field(default_factory=Assumptions)
    exchange: str = ""
    guard: bool = True


@dataclass(slots=True)
class Captured:
    """What one process recorded."""

    step: StepRecords
    memory: MemoryUse
    precision: Precision
    assumed: dict[str, int]
    groups: list[tuple[str, tuple[int, ...]]]
    compiled: bool
    notes: list[str]
    samples: Samples


class Session:
    """Installs itself into this process's torch; there is no way back but the process's end."""

    def __init__(self, settings: Settings, progress: Callable[[str], None] = lambda text: None) -> None:
        self.settings, self.progress = settings, progress
        gpu = settings.gpu
        self.allocator = CachingAllocator(int(gpu.memory_bytes * USABLE_SHARE - CONTEXT_BYTES))
        self.liveness = Liveness(self.allocator)
        self.values = Values(settings.assumptions)
        self.world = World(settings.rank, settings.world, settings.per_node)
        (install_guard if settings.guard else install_meta_answer)()
        install_device(gpu, _figures(self.allocator))
        install_tensors(self.values.read)
        install_modules()
        install_operators()
        install_libraries()
        install_routing()
        install_checks()
        install_attention(gpu.capability)
        tried = self._recorder(Values(settings.assumptions), Liveness(CachingAllocator()), Workspaces((0, 0)))
        run_self_test(tried, autocast=settings.guard)
        if settings.assumptions.older_than(2, 0):
            install_old_defaults()
        self.recorder = self._recorder(self.values, self.liveness, Workspaces(gpu.capability))
        self.files = intercept(self.recorder)
        install_groups(self.recorder, self.world, settings.exchange)
        self.boundaries = StepBoundaries(self._begin, self._end, warmup=settings.warmup, steps=settings.steps)
        self.batches = Batches(lambda: self.recorder.recording)
        self.batches.install()
        self._profile = HostProfile()
        self._recorded: Captured | None = None
        _watch_optimizers(self.boundaries)

    def _recorder(self, values: Values, liveness: Liveness, workspaces: Workspaces) -> Recorder:
        recorder = Recorder(values, liveness, workspaces)
        if not self.settings.guard:
            recorder.device_for_cpp, recorder.meant = device_for_cpp, meant
        return recorder

    def _begin(self) -> None:
        self.progress(f"recording after {self.boundaries.seen} steps")
        if self.recorder.recording:
            self._profile.stop()
        gc.collect()
        self.recorder.records = []
        self.values.assumed.clear()
        self.batches.start_step()
        self.liveness.start_step()
        self._profile.start()
        self.recorder.recording = True

    def _end(self) -> None:
        self.recorder.recording = False
        operators, silent = self._profile.stop()
        self._recorded = Captured(
            StepRecords(self.recorder.records, operators, silent),
            memory_use(self.liveness, self.boundaries.optimizers.values(), self._call_names()),
            self.precision(),
            dict(self.values.assumed),
            list(self.world.groups),
            self.files.compiled,
            self._notes(),
            self.batches.samples(),
        )

    def _call_names(self) -> list[str]:
        return [
            f"{r.call.namespace}::{r.call.name}" for r in self.recorder.records if isinstance(r, CallRecord)
        ]

    def _notes(self) -> list[str]:
        notes = [] if self.settings.guard else [WITHOUT_GUARD]
        if self.settings.assumptions.torch:
            notes.append(f"with the defaults and cuDNN of torch {self.settings.assumptions.torch}")
        if self.settings.world > 1 and not self.world.initialised:
            notes.append(
                f"init_process_group was never called: {self.settings.world} independent copies are predicted"
            )
        if self.files.compiled and self.settings.assumptions.compile == "eager":
            notes.append(COMPILED)
        for what, count in self.files.left_out.items():
            notes.append(f"{what} left out ({count}×)")
        return notes

    def precision(self) -> Precision:
        """Whether fp32 products may use TF32, as the script set it and the GPU allows; cuDNN's version."""
        ampere = self.settings.gpu.capability >= (8, 0)
        return Precision(
            bool(torch.backends.cuda.matmul.allow_tf32) and ampere,
            bool(torch.backends.cudnn.allow_tf32) and ampere,
            8 if self.settings.assumptions.older_than(2, 4) else 9,
        )

    @property
    def captured(self) -> Captured | None:
        """None until a whole step has been recorded."""
        return self._recorded

    def __enter__(self) -> Session:
        self.recorder.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.recorder.__exit__(*error)


def _figures(allocator: CachingAllocator) -> MemoryFigures:
    return MemoryFigures(
        lambda: allocator.active_bytes, lambda: allocator.peak_active_bytes,
        lambda: allocator.reserved_bytes, lambda: allocator.peak_reserved_bytes,
        allocator.reset_peaks, allocator.empty_cache,
    )  # fmt: skip


def _watch_optimizers(boundaries: StepBoundaries) -> None:
    """Called with every optimizer, and of its steps once the step's own profiler range is closed."""
    made = torch.optim.Optimizer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        boundaries.made.add(self)

    torch.optim.Optimizer.__init__ = init
    hook = torch.optim.Optimizer.profile_hook_step

    def profile_hook_step(function: Any) -> Any:
        hooked = hook(function)

        @functools.wraps(hooked)
        def step(*args: Any, **kwargs: Any) -> Any:
            out = hooked(*args, **kwargs)
            boundaries.stepped(args[0])
            return out

        return step

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)
