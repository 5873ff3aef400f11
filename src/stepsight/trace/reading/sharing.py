"""Texts that a trace repeats, kept once: names, and the undecoded lists of sizes and types.

Layers and steps repeat the same few of them. An undecoded list is a window into the file's content, so the
content could not be let go while one of them is left.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import force_setattr

from stepsight.trace.reading.events import NO_ARGS, NO_RAW, Event


def share_texts(events: Iterable[Event]) -> None:
    """Make equal texts of these events one object; afterwards none of them refers to the file's content."""
    texts: dict[str, str] = {}
    lists: dict[bytes, msgspec.Raw] = {}

    def kept(raw: msgspec.Raw) -> msgspec.Raw:
        text = bytes(raw)
        known = lists.get(text)
        if known is None:
            known = lists[text] = msgspec.Raw(text)
        return known

    for event in events:
        event.name = texts.setdefault(event.name, event.name)
        args = event.args
        if args is NO_ARGS:
            continue
        if args.dims is not NO_RAW:
            force_setattr(args, "dims", kept(args.dims))
        if args.old_dims is not NO_RAW:
            force_setattr(args, "old_dims", kept(args.old_dims))
        if args.types is not NO_RAW:
            force_setattr(args, "types", kept(args.types))
        if args.concrete is not NO_RAW:
            force_setattr(args, "concrete", kept(args.concrete))
        if args.grid is not NO_RAW:
            force_setattr(args, "grid", kept(args.grid))
        if args.block is not NO_RAW:
            force_setattr(args, "block", kept(args.block))
