"""How long a training step takes on GPUs you don't have, and why.

>>> from stepsight import load_platform, load_workload, predict
>>> predict(load_workload("examples/dlrm.toml"), load_platform("4xV100-SXM2")).step_us  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsight.platform.load import Platform, load_platform
    from stepsight.prediction.answer import Prediction
    from stepsight.prediction.predict import predict
    from stepsight.trace.step.run import load_trace
    from stepsight.workload.files import load_workload

__all__ = ["Platform", "Prediction", "load_platform", "load_trace", "load_workload", "predict"]

_HOMES = {
    "load_workload": "stepsight.workload.files",
    "load_platform": "stepsight.platform.load",
    "Platform": "stepsight.platform.load",
    "predict": "stepsight.prediction.predict",
    "Prediction": "stepsight.prediction.answer",
    "load_trace": "stepsight.trace.step.run",
}


def __getattr__(name: str) -> Any:
    """Load on first use: ``import stepsight`` stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stepsight' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
