"""torchvision without its compiled operators, as on a machine that has a GPU build of it and no GPU.

Importing such a torchvision fails because it adds a rule to an operator that nobody defined. The operator's
signature is enough: models that do not call it are captured, and a call is refused by name.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

SIGNATURES = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
_defined: list[torch.library.Library] = []
"""Definitions last as long as the object that made them."""


def install() -> None:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _defined:
        return
    for compiled in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            torch.ops.load_library(str(compiled))
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "DEF")
    for signature in SIGNATURES:
        library.define(signature)
    _defined.append(library)
