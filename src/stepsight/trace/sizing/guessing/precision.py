"""The element type that a kernel's name tells, and the one that most products of a trace compute in."""

from __future__ import annotations

import re
from collections import Counter

from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.sizing.launch_grid import GEMM

_TENSILE = re.compile(r"^Cijk_\w+?_\w+?_([A-Z0-9]+)_")
"""Products of AMD's Tensile: letters behind the order of indices are the types of inputs, result and sum."""
_TENSILE_TYPES = {"B": "bf16", "H": "fp16", "F8": "fp8", "X": "tf32", "S": "fp32"}


def dtype_by_name(name: str) -> str:
    """The type a kernel computes in, fp32 where its name says none."""
    tensile = _TENSILE.match(name)
    if tensile:
        return next((kind for code, kind in _TENSILE_TYPES.items() if tensile[1].startswith(code)), "fp32")
    if name.startswith(("nvjet_q", "nvjet_r")):
        return "fp8"
    if "bf16" in name or "BFloat16" in name or "bfloat16" in name:
        return "bf16"
    if "Half" in name or "fp16" in name or "f16" in name or "h884" in name or name.startswith("nvjet_h"):
        return "fp16"
    if name.startswith("nvjet_t"):
        return "bf16"
    return "tf32" if "s1688" in name or "tf32" in name else "fp32"


def common_dtype(linked: LinkedTrace) -> str:
    """What the trace's matrix products compute in: its other kernels mostly stream the same."""
    names = (x.gpu[0].name for x in linked.launches)
    seen = Counter(dtype_by_name(name) for name in names if GEMM.search(name) or _TENSILE.match(name))
    return seen.most_common(1)[0][0] if seen else "fp32"
