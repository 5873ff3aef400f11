"""Element types of a trace that recorded its operators' sizes without them: what its products compute in."""

from __future__ import annotations

import msgspec

from stepsight.trace.linking.link import LinkedTrace
from stepsight.trace.reading.events import NO_RAW
from stepsight.trace.sizing.guessing.precision import common_dtype

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
