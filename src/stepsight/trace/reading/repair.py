"""Reading JSON that is not quite JSON: cut files, NaN, stray escapes, unexpected types.

A profiler that was killed leaves half a file; some versions write NaN or raw
backslashes. What can be read is read, and the reader says what was lost.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BARE_WORDS = re.compile(rb"(?<=[:\[,\s])(-?(?:NaN|nan|Infinity|inf))(?=[\s,\]}])")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrtu])')
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_LIST_START = re.compile(r'"(traceEvents|nodes)"\s*:\s*\[')


def mended(content: bytes) -> bytes:
    """The same JSON with bare NaN as null, stray backslashes doubled and control characters dropped."""
    content = _CONTROL.sub(b" ", content)
    return _BARE_WORDS.sub(b"null", _BAD_ESCAPE.sub(rb"\\\\", content))


def salvaged(content: bytes) -> tuple[dict[str, Any], int]:
    """What a cut or broken file still holds: its leading fields and every whole event.

    Returns the document and how many characters after the last whole event were given up (none
    where the list is closed).
    """
    text = content.decode("utf-8", errors="replace")
    found = _LIST_START.search(text)
    start = found.end() if found else text.find("[") + 1
    if start <= 0:
        return {}, len(text)
    key = found.group(1) if found else "traceEvents"
    document = _leading_fields(text[: found.start()]) if found else {}
    decode = json.JSONDecoder(strict=False).raw_decode
    items: list[Any] = []
    at = good = start
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == "]":
            break
        try:
            item, at = decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            # One broken event: go on at the next one that starts a line or follows a comma.
            following = re.compile(r'\{\s*"(?:ph|name|id)"').search(text, at + 1)
            if following is None:
                break
            at = following.start()
            continue
        items.append(item)
        good = at
    document[key] = items
    whole = text[good:].lstrip(" \t\r\n,").startswith("]")
    return document, 0 if whole else max(len(text) - good, 1)


def _leading_fields(head: str) -> dict[str, Any]:
    """The scalar and object fields before the event list, as far as they parse."""
    closed = head.rstrip().rstrip(",") + "}"
    try:
        fields = json.loads(closed, strict=False)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
