"""How much of what a model misses of a kernel on one GPU it misses on another: the exponents of anchoring.

`python -m lab fit anchoring` chooses them on operators that several GPUs ran, and writes the file that ships.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from stepsight.program.job import Kernel, Sizing

FILE = "anchoring.json"
SHIPPED = Path(__file__).parent / FILE
PRODUCT, STREAM, UNSIZED = "product", "stream", "unsized"
"""Matrix products, convolutions and attention; kernels that stream data; kernels without sizes."""
_PRODUCTS = ("gemm", "conv", "attention")


def class_of(kernel: Kernel) -> str:
    """Which exponent a kernel takes."""
    if kernel.sizing is Sizing.UNKNOWN:
        return UNSIZED
    return PRODUCT if kernel.family.startswith(_PRODUCTS) else STREAM


class AnchorWeights(msgspec.Struct, frozen=True):
    """The exponents by class of kernel.

    Of a kernel that took t µs the exponent counts t / (t + ``fades_under_us``): a short time is mostly launch
    latency.
    """

    weights: Mapping[str, float]
    fades_under_us: float
    provenance: str = ""

    def weight(self, kind: str, measured_us: float) -> float:
        """The exponent of a kernel of one class that took so long."""
        return self.weights[kind] * measured_us / (measured_us + self.fades_under_us)


@lru_cache(maxsize=1)
def shipped_weights() -> AnchorWeights:
    """Those that come with stepsight."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=AnchorWeights)
