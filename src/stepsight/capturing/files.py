"""What a script writes, reads and compiles: no saves, loads to the CPU, compiled code run eagerly."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from stepsight.capturing.recorder import Recorder


@dataclass(slots=True)
class Interceptions:
    """``left_out`` counts what was not done; ``compiled``: torch.compile was asked for."""

    left_out: Counter[str] = field(default_factory=Counter)
    compiled: bool = False


def intercept(recorder: Recorder) -> Interceptions:
    seen = Interceptions()
    _install_saves(seen)
    _install_compile(recorder, seen)
    return seen


def _install_saves(seen: Interceptions) -> None:
    def save(*_: Any, **__: Any) -> None:
        seen.left_out["torch.save"] += 1

    load = torch.load

    def load_on_cpu(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(file, "cpu", *args, **kwargs)

    torch.save, torch.load = save, load_on_cpu
    torch.serialization.save = save
    try:
        import safetensors.torch
    except ImportError:
        return

    def save_tensors(*_: Any, **__: Any) -> None:
        seen.left_out["safetensors.save_file"] += 1

    safetensors.torch.save_file = save_tensors
    try:
        import torch.distributed.checkpoint as checkpoint
    except ImportError:
        return
    checkpoint.save = lambda *_, **__: seen.left_out.update(["distributed checkpoint save"])


def _install_compile(recorder: Recorder, seen: Interceptions) -> None:
    """Compiled functions run eagerly; their calls are marked, for the fusion to be approximated."""

    def marked(function: Any, cuda_graph: bool) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            recorder.regions.enter(cuda_graph=cuda_graph)
            try:
                return function(*args, **kwargs)
            finally:
                recorder.regions.leave()

        return run

    def compile_(model: Any = None, **options: Any) -> Any:
        seen.compiled = True
        if model is None:
            return functools.partial(compile_, **options)
        graphs = _uses_cuda_graphs(**options)
        if isinstance(model, torch.nn.Module):
            model._compiled_call_impl = marked(model._call_impl, graphs)
            if "_orig_mod" not in model.__dict__:  # as torch's wrapper shows the module
                object.__setattr__(model, "_orig_mod", model)
            return model
        return marked(model, graphs)

    def compile_in_place(self: torch.nn.Module, *_: Any, **options: Any) -> None:
        seen.compiled = True
        self._compiled_call_impl = marked(self._call_impl, _uses_cuda_graphs(**options))

    torch.compile = compile_
    torch.nn.Module.compile = compile_in_place


def _uses_cuda_graphs(mode: str | None = None, options: Any = None, **_: Any) -> bool:
    """Whether Inductor records CUDA graphs: with these modes, unless the mode says not to."""
    if options and "triton.cudagraphs" in options:
        return bool(options["triton.cudagraphs"])
    return mode in ("reduce-overhead", "max-autotune")
