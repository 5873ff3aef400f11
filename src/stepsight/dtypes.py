"""Element types and their sizes."""

from __future__ import annotations

from collections.abc import Mapping

from stepsight.errors import StepsightError

DTYPE_BYTES: Mapping[str, int] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise StepsightError(f"unknown dtype {dtype!r}; one of {', '.join(DTYPE_BYTES)}") from None
