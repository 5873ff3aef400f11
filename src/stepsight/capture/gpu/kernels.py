"""Operators that have a CUDA kernel of their own must not be taken apart for want of one in this build.

silu_backward and its like are defined by other operators, and a device may bring a kernel instead. A build
without CUDA has none for it, and C++ would take the operator apart before the recorder sees it. A kernel
registered here is never run: the recorder stands before it.
"""

from __future__ import annotations

from typing import Any

import torch

_registered: list[Any] = []


def install() -> None:
    """Register a kernel for every operator that is both composite and implemented by the CPU itself."""
    library = torch.library.Library("aten", "IMPL")
    _registered.append(library)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"):
        if name.startswith("aten::") and has(name, "CPU") and not has(name, "CUDA"):
            library.impl(name.removeprefix("aten::"), _never_run, "CUDA")


def _never_run(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("an operator reached the fake GPU without the recorder")
