"""What is assumed where a script's way depends on values that only a GPU would compute (``--assume``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from stepsight.errors import InputError

_COMPILE = ("fused", "eager")


@dataclass(frozen=True, slots=True)
class Assumptions:
    """``mask_share``: elements that an unknown mask selects. ``distinct_share``: distinct values among
    unknown ones. ``expert_balance``: the largest expert's tokens over the mean. ``zipf``: skew of lookups
    into embedding tables, 0 for uniform. ``compile``: ``fused`` models what torch.compile fuses, ``eager``
    leaves compiled functions as they were captured."""

    mask_share: float = 0.5
    distinct_share: float = 0.5
    expert_balance: float = 1.0
    zipf: float = 0.0
    compile: str = "fused"

    @classmethod
    def read(cls, assignments: Iterable[str]) -> Assumptions:
        """From ``name=value`` as the command line gives them."""
        known = {f.name for f in fields(cls)}
        changed: dict[str, Any] = {}
        for text in assignments:
            name, _, value = text.partition("=")
            if name not in known:
                raise InputError(
                    f"--assume {text}",
                    f"no assumption is called {name!r}",
                    f"one of {', '.join(sorted(known))}",
                )
            if name == "compile":
                if value not in _COMPILE:
                    raise InputError(f"--assume {text}", f"must be one of {', '.join(_COMPILE)}")
                changed[name] = value
                continue
            try:
                number = float(value)
            except ValueError:
                raise InputError(
                    f"--assume {text}", "its value is not a number", f"write {name}=0.5"
                ) from None
            highest = 1.0 if name.endswith("_share") else float("inf")
            lowest = 1.0 if name == "expert_balance" else 0.0
            if not lowest <= number <= highest:
                raise InputError(f"--assume {text}", f"must lie between {lowest:g} and {highest:g}")
            changed[name] = number
        return cls(**changed)
