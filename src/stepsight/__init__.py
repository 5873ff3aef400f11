"""How long a training step takes on GPUs you don't have, and why.

>>> import stepsight
>>> prediction = stepsight.predict("examples/dlrm.toml", "8xH100-SXM")  # doctest: +SKIP
>>> prediction.step_time_us, prediction.throughput.samples_per_s  # doctest: +SKIP

Everything here loads on first use, so ``import stepsight`` is instant and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepsight.capturing.api import capture
    from stepsight.errors import InputError, StepsightError
    from stepsight.hardware.gpus import load_gpu
    from stepsight.platform.load import Platform, load_platform
    from stepsight.prediction.advice import advise
    from stepsight.prediction.answer import Prediction
    from stepsight.prediction.compare import Comparison, compare
    from stepsight.prediction.diagnosis import diagnose
    from stepsight.prediction.kernel_times import collective_time, kernel_time
    from stepsight.prediction.learn.lesson import learn
    from stepsight.prediction.predict import predict
    from stepsight.prediction.traced.predict import predict_trace
    from stepsight.sharding.choice import choose
    from stepsight.trace.run import load_trace
    from stepsight.tuning.api import sweep, tune
    from stepsight.workload.files import load_workload

    __version__: str

__all__ = [
    "Comparison",
    "InputError",
    "Platform",
    "Prediction",
    "StepsightError",
    "__version__",
    "advise",
    "capture",
    "choose",
    "collective_time",
    "compare",
    "diagnose",
    "kernel_time",
    "learn",
    "load_gpu",
    "load_platform",
    "load_trace",
    "load_workload",
    "predict",
    "predict_trace",
    "sweep",
    "tune",
]

_HOMES = {
    "load_workload": "stepsight.workload.files",
    "load_platform": "stepsight.platform.load",
    "load_gpu": "stepsight.hardware.gpus",
    "Platform": "stepsight.platform.load",
    "predict": "stepsight.prediction.predict",
    "predict_trace": "stepsight.prediction.traced.predict",
    "Prediction": "stepsight.prediction.answer",
    "compare": "stepsight.prediction.compare",
    "kernel_time": "stepsight.prediction.kernel_times",
    "collective_time": "stepsight.prediction.kernel_times",
    "Comparison": "stepsight.prediction.compare",
    "advise": "stepsight.prediction.advice",
    "diagnose": "stepsight.prediction.diagnosis",
    "learn": "stepsight.prediction.learn.lesson",
    "choose": "stepsight.sharding.choice",
    "load_trace": "stepsight.trace.run",
    "StepsightError": "stepsight.errors",
    "InputError": "stepsight.errors",
    "tune": "stepsight.tuning.api",
    "sweep": "stepsight.tuning.api",
    "capture": "stepsight.capturing.api",
}


def __getattr__(name: str) -> Any:
    """Load on first use."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("stepsight")
        except PackageNotFoundError:  # run from a folder that is not installed
            return "unknown"
    if name not in _HOMES:
        raise AttributeError(f"module 'stepsight' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
