"""A training script, run on this machine without a GPU, becomes a Job. Needs torch 2.9 or newer.

`worker` runs a script as one rank in a process of its own; `ranks` finds which ranks differ and puts the job
together; `session` is the fake GPU with its recorder. `step` holds what is left of it: plain data, no torch.
The package can be called: ``stepsight.capture(…)`` is `stepsight.capture.api.capture`.
"""

from __future__ import annotations

import sys
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """A module that is also the function of its name."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from stepsight.capture.api import capture

        return capture(*arguments, **named)

    @property
    def __signature__(self) -> Signature:
        """Of the function, for ``help`` and notebooks."""
        from stepsight.capture.api import capture

        return signature(capture)


sys.modules[__name__].__class__ = _Called
