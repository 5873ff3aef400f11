"""Whether this torch has what a capture needs, asked by feature and not by version."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

NEEDED = (
    "_C._profiler._RecordFunctionFast", "_C._dispatch_has_kernel_for_dispatch_key",
    "_C._dispatch_get_registrations_for_dispatch_key", "_C._current_autograd_node",
    "_C._disabled_torch_dispatch_impl", "_C._swap_tensor_impl", "autograd._get_sequence_nr",
    "autograd.profiler.profile", "Tag.pointwise", "optim.Optimizer.profile_hook_step", "library.Library",
    "ops.prim.device.default", "get_autocast_dtype", "float8_e4m3fn", "uint64",
    "_subclasses.fake_tensor.FakeTensorMode", "_subclasses.fake_tensor.FakeTensor",
)  # fmt: skip
"""Names under torch that the recorder uses; each is missing from some older version."""
TRIED = "2.13"
"""The version that the whole capture was tried with."""


def missing() -> list[str]:
    """What this torch lacks."""
    import torch._subclasses.fake_tensor

    lacking = [f"torch.{name}" for name in NEEDED if _reach(name) is None]
    if torch.distributed.is_available():
        import torch.distributed.distributed_c10d as c10d

        works = getattr(torch.distributed, "_Work", None)
        if works is None or not hasattr(works, "get_future"):
            lacking.append("futures of collectives written in Python")
        lacking += [f"c10d.{name}" for name in ("_world", "_get_default_group") if not hasattr(c10d, name)]
    return lacking


def _reach(name: str) -> Any:
    try:
        return reduce(getattr, name.split("."), torch)
    except AttributeError:
        return None
