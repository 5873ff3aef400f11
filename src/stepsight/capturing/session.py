"""One process's capture: the fake GPU, the recorder and the process group, put together and taken in turn.

What a script writes, reads and compiles is intercepted here too: saves are left out, loads go to the CPU,
compiled code runs eagerly.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach

from stepsight.capturing.boundaries import Batches, HostProfile, StepBoundaries, install_profilers
from stepsight.capturing.calls import CallRecord, StepRecords
from stepsight.capturing.device import install_device
from stepsight.capturing.fusion import fused
from stepsight.capturing.groups import World, install_groups
from stepsight.capturing.guard import install_guard
from stepsight.capturing.memory import Liveness, Workspaces, memory_use
from stepsight.capturing.operators import (
    install_attention,
    install_libraries,
    install_old_defaults,
    install_operators,
)
from stepsight.capturing.program import Lowering, ProgramBuilder, families
from stepsight.capturing.recorder import Recorder
from stepsight.capturing.request import CUDNN_9, Answer, Assumptions, MessageGroup, Request
from stepsight.capturing.step import encode_program
from stepsight.capturing.tensors import install_modules, install_tensors
from stepsight.capturing.values import Values, install_checks, install_routing
from stepsight.hardware.spec import USABLE_SHARE
from stepsight.program.allocator import CachingAllocator
from stepsight.program.aten.call import Precision
from stepsight.terminal import counted
from stepsight.workload.memory import CONTEXT_BYTES

COMPILED = (
    "torch.compile: captured eagerly; a compiled step launches fewer kernels and moves less memory, so the "
    "step is an upper bound"
)


class Session:
    """Installs itself into this process's torch; there is no way back but the process's end.

    ``captured`` is None until a whole step has been recorded.
    """

    def __init__(self, request: Request, progress: Callable[[str], None] = lambda text: None) -> None:
        self.request, self.progress = request, progress
        self.assumptions = Assumptions.read(request.assume)
        self.captured: Answer | None = None
        gpu = request.gpu
        allocator = CachingAllocator(int(gpu.memory_bytes * USABLE_SHARE - CONTEXT_BYTES))
        self.liveness = Liveness(allocator)
        self.values = Values(self.assumptions)
        self.world = World(request.rank, request.world, request.per_node)
        install_guard()
        install_device(gpu, min(request.per_node, request.world), allocator)
        install_tensors(self.values.read)
        install_modules()
        install_operators()
        install_libraries()
        install_routing()
        install_checks()
        install_profilers()
        install_attention(gpu.capability)
        run_self_test(Recorder(Values(self.assumptions), Liveness(CachingAllocator()), Workspaces((0, 0))))
        if self.assumptions.older_than(2, 0):
            install_old_defaults()
        self.recorder = Recorder(self.values, self.liveness, Workspaces(gpu.capability))
        self.left_out: Counter[str] = Counter()
        self.compiled = False
        self._install_saves()
        self._install_compile()
        install_groups(self.recorder, self.world, request.exchange)
        self.boundaries = StepBoundaries(self._begin, self._end, warmup=request.warmup, steps=request.steps)
        self.batches = Batches(lambda: self.recorder.recording)
        self.batches.install()
        self._profile = HostProfile()
        _watch_optimizers(self.boundaries)

    def _begin(self) -> None:
        self.progress(f"recording after {counted(self.boundaries.seen, 'step')}")
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
        """The rank's program, its groups, memory and notes."""
        self.recorder.recording = False
        step = StepRecords(self.recorder.records, *self._profile.stop())
        called = [
            f"{r.call.namespace}::{r.call.name}" for r in self.recorder.records if isinstance(r, CallRecord)
        ]
        memory = memory_use(self.request.rank, self.liveness, self.boundaries.counts, called)
        notes, lowering = self._notes(), Lowering(self.precision(), self.assumptions)
        if self.compiled and self.assumptions.compile == "fused":
            step, note = fused(step, lowering)
            notes.append(note)
        world = self.request.world
        builder = ProgramBuilder(self.request.rank, world, families(self.world.groups, world), lowering)
        program = builder.build(step)
        messages = [MessageGroup(n, f.name, a, b) for n, (f, a, b) in builder.message_groups.items()]
        self.captured = Answer(
            "captured", program=encode_program(program), groups=list(self.world.groups), messages=messages,
            memory=memory, guessed=dict(builder.guessed), assumed=dict(self.values.assumed), notes=notes,
            torch=self.assumptions.torch or str(torch.__version__), samples=self.batches.samples(),
        )  # fmt: skip

    def _notes(self) -> list[str]:
        notes = []
        if self.assumptions.torch:
            notes.append(f"with the defaults and cuDNN of torch {self.assumptions.torch}")
        if self.request.world > 1 and not self.world.initialised:
            notes.append(
                f"init_process_group was never called: {self.request.world} independent copies are predicted"
            )
        if self.compiled and self.assumptions.compile == "eager":
            notes.append(COMPILED)
        return [*notes, *(f"{what} left out ({count}×)" for what, count in self.left_out.items())]

    def precision(self) -> Precision:
        """Whether fp32 products may use TF32, as the script set it and the GPU allows; cuDNN's version."""
        ampere = self.request.gpu.capability >= (8, 0)
        return Precision(
            bool(torch.backends.cuda.matmul.allow_tf32) and ampere,
            bool(torch.backends.cudnn.allow_tf32) and ampere,
            8 if self.assumptions.older_than(*CUDNN_9) else 9,
            self.assumptions.older_than(2, 11),
        )

    def __enter__(self) -> Session:
        self.recorder.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.recorder.__exit__(*error)

    def _install_saves(self) -> None:
        def skipped(what: str) -> Callable[..., None]:
            return lambda *_, **__: self.left_out.update([what])

        load = torch.load

        def load_on_cpu(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            return load(file, "cpu", *args, **kwargs)

        torch.save = torch.serialization.save = skipped("torch.save")
        torch.load = load_on_cpu
        with contextlib.suppress(ImportError):
            import safetensors.torch

            safetensors.torch.save_file = skipped("safetensors.save_file")
        with contextlib.suppress(ImportError):
            import torch.distributed.checkpoint as checkpoint

            checkpoint.save = skipped("distributed checkpoint save")

    def _install_compile(self) -> None:
        """Compiled functions run eagerly; their calls are marked, for the fusion to be approximated."""
        regions = self.recorder.regions

        def marked(function: Any, cuda_graph: bool) -> Any:
            self.compiled = True

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                regions.enter(cuda_graph=cuda_graph)
                try:
                    return function(*args, **kwargs)
                finally:
                    regions.leave()

            return run

        def compile_(model: Any = None, **options: Any) -> Any:
            if model is None:
                return functools.partial(compile_, **options)
            if not isinstance(model, torch.nn.Module):
                return marked(model, _uses_cuda_graphs(**options))
            compile_in_place(model, **options)
            if "_orig_mod" not in model.__dict__:  # as torch's wrapper shows the module
                object.__setattr__(model, "_orig_mod", model)
            return model

        def compile_in_place(self: torch.nn.Module, *_: Any, **options: Any) -> None:
            self._compiled_call_impl = marked(self._call_impl, _uses_cuda_graphs(**options))

        torch.compile = compile_
        torch.nn.Module.compile = compile_in_place
        torch.compiler.cudagraph_mark_step_begin = lambda: None


def _uses_cuda_graphs(mode: str | None = None, options: Any = None, **_: Any) -> bool:
    """Whether Inductor records CUDA graphs: with these modes, unless the mode says not to."""
    if options and "triton.cudagraphs" in options:
        return bool(options["triton.cudagraphs"])
    return mode in ("reduce-overhead", "max-autotune")


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


class SelfTestError(Exception):
    """The fake GPU does not behave as a GPU would."""


def run_self_test(recorder: Recorder) -> None:
    """Forward and backward of one layer under autocast; raises `SelfTestError`."""
    recorder.recording = True
    with recorder:
        layer = torch.nn.Linear(8, 8).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            out = layer(torch.ones(4, 8, device="cuda"))
        out.float().sum().backward()
        gradient = layer.weight.grad
        _, together = _default_to_fused_or_foreach(list(layer.parameters()), False, use_fused=False)
    calls = [r.call for r in recorder.records if isinstance(r, CallRecord)]
    products = [call for call in calls if call.name in ("mm", "addmm")]
    if gradient is None or gradient.device.type != "cuda":
        raise SelfTestError("a backward pass left no gradient on the GPU")
    if len(products) != 2 or any(t.dtype != "fp16" for p in products for t in p.made_on_gpu):
        raise SelfTestError("a layer's two products did not come out in fp16")
    if not together:
        raise SelfTestError("an optimizer would not update its parameters together, as on a GPU")
