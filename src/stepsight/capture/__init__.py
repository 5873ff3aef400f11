"""A training script, run on this machine without a GPU, becomes a Job. Needs torch 2.9 or newer.

`worker` runs a script as one rank in a process of its own; `ranks` finds which ranks differ and puts the job
together; `session` is the fake GPU with its recorder. `step` holds what is left of it: plain data, no torch.
The package can be called: ``with stepsight.capture(world=8) as c:`` captures a block of Python (`notebook`).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `stepsight.capture.notebook.Capture`."""
        from stepsight.capture.notebook import Capture

        return Capture(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
