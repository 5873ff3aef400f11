"""The terminal: its width, its encoding, and text that is never read as markup.

Names come from traces and files, so nothing printed is interpreted: no markup, no emoji codes.
A pipe or a file has no width, so lines are written whole.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

UNBROKEN = 10_000
"""Columns of an output that is no terminal: nothing is wrapped or cut."""
PLAIN = {
    "µ": "u", "×": "x", "–": "-", "−": "-", "—": "-", "…": "...", "█": "#", "≤": "<=", "≥": ">=",
    "→": "->", "±": "+-", "▲": "^", "·": "-", "é": "e", "’": "'", "✗": "x",
}  # fmt: skip
_HANDLER = "stepsight.plain"


def terminal(*, stderr: bool = False) -> Console:
    """Where a command prints its tables."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or "COLUMNS" in os.environ else UNBROKEN
    return Console(highlight=False, markup=False, emoji=False, width=wide, stderr=stderr)


def speak_plainly_where_needed() -> None:
    """Let terminals that cannot show µ or × show u and x instead of failing."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and "utf" not in (stream.encoding or "").lower():
            reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(c, "?") for c in lost), error.end
