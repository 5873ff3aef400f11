"""Chakra execution traces are recognised, so that they can be refused with a reason."""

from __future__ import annotations

from stepsight.trace.reading.files import TraceFile


def looks_like_chakra(file: TraceFile) -> bool:
    """Whether a file is Chakra's, by its name or by its first JSON object."""
    if file.path.endswith(".et"):
        return True
    head = file.content[:2048]
    return b'"attr"' in head and b'"schema"' in head and b'"nodes"' not in head
