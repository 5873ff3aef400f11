"""Element types: what a kernel's name states, what most products of a trace compute in, and the types of a
trace that recorded its operators' sizes without them."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import NO_RAW
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


_SPELT = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp8": "c10::Float8_e4m3fn"}


def add_types(linked: LinkedTrace) -> str | None:
    """Give every input the type of the trace's products, where no operator recorded types.

    Returns that type, or None where there was nothing to add.
    """
    if any(op.args.types is not NO_RAW for op in linked.ops):
        return None
    sized = [op for op in linked.ops if op.args.dims is not NO_RAW or op.args.old_dims is not NO_RAW]
    if not any(op.shapes() for op in sized):
        return None
    dtype = common_dtype(linked)
    spelt = _SPELT.get(dtype, "float")
    lists: dict[int, msgspec.Raw] = {}
    for op in sized:
        inputs = len(op.shapes())
        if inputs not in lists:
            lists[inputs] = msgspec.Raw(msgspec.json.encode([spelt] * inputs))
        op.args = msgspec.structs.replace(op.args, types=lists[inputs])
    return dtype
