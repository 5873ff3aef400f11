"""The best configuration of a workload on a platform, with reasons; and tables over any field.

The package can be called: ``stepsight.tune(...)`` is `stepsight.tune.api.tune`.
"""

from __future__ import annotations

import sys
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """A module that is also the function of its name."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from stepsight.tune.api import tune

        return tune(*arguments, **named)

    @property
    def __signature__(self) -> Signature:
        """Of the function, for ``help`` and notebooks."""
        from stepsight.tune.api import tune

        return signature(tune)


sys.modules[__name__].__class__ = _Called
