"""Regular expressions that a user types: valid, short, and never exponential."""

from __future__ import annotations

import re
import sys
from typing import Any

from stepsight.errors import InputError

if sys.version_info >= (3, 11):
    from re import _constants as constants  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as constants
    import sre_parse as parser

LONGEST = 500
_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT)
_FEW = 16
"""A repeat of at most this many is not open-ended."""


def compiled(pattern: str, where: str) -> re.Pattern[str]:
    """The compiled pattern; a repeat inside a repeat, which can take for ever, is refused."""
    if len(pattern) > LONGEST:
        raise InputError(where, f"is {len(pattern)} characters long", f"use at most {LONGEST}")
    try:
        tree = parser.parse(pattern)
        found = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(where, f"{pattern!r} is not a regular expression: {error}", "correct it") from None
    if _nested(tree, inside=False):
        raise InputError(
            where, f"{pattern!r} repeats a repeat, which can take for ever", "write it without one, as a+"
        )
    return found


def _nested(tree: Any, *, inside: bool) -> bool:
    for code, argument in tree:
        if code in _REPEATS:
            _, most, body = argument
            is_open = most is constants.MAXREPEAT or most > _FEW
            if (inside and is_open) or _nested(body, inside=inside or is_open):
                return True
        elif code is constants.SUBPATTERN:
            if _nested(argument[-1], inside=inside):
                return True
        elif code is constants.BRANCH:
            if any(_nested(branch, inside=inside) for branch in argument[1]):
                return True
        elif code in (constants.ASSERT, constants.ASSERT_NOT) and _nested(argument[1], inside=inside):
            return True
    return False
