"""What is varied, as people type it: names of dimensions, or a field and its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepsight.errors import InputError
from stepsight.tuning.dimensions import ALIASES, field_path
from stepsight.tuning.trial import Setting

Over = dict[str, list[Setting] | None]
"""Values by field; ``None`` where only the field is named."""


def parsed_over(over: Sequence[str]) -> Over:
    """``--over tp,pp`` names dimensions, ``--over batch=512,1024`` gives values, ``tp,zero=0,1`` does both.

    A part with ``=`` begins a field; parts after it are its values, unless one is a dimension's name.
    """
    found: Over = {}
    for text in over:
        values: list[Setting] | None = None
        for part in _parts(text):
            name, equals, first = _divided(part)
            if equals:
                values = [_value(first)] if first else []
                _put(found, name, values)
            elif values is None or part in ALIASES:
                values = None
                _put(found, part, None)
            else:
                values.append(_value(part))
    for path, listed in found.items():
        if listed is not None and not listed:
            raise InputError(f"--over {path}=", "names no value", f"write {path}=a,b,c")
    if over and not found:
        raise InputError("--over", "names no field", "write --over tp,pp or --over batch=512,1024")
    return found


def _put(found: Over, name: str, values: list[Setting] | None) -> None:
    if not name:
        raise InputError("--over", "names no field before =", "write --over batch=512,1024")
    path = field_path(name)
    if path in found:
        raise InputError(f"--over {name}", "is given twice", "give all its values at once, a,b,c")
    found[path] = values


def _parts(text: str) -> Iterator[str]:
    """Cut at commas outside of brackets."""
    depth, now = 0, ""
    for letter in (*text, ","):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            if now.strip():
                yield now.strip()
            now = ""
        else:
            now += letter
    if now.strip(", "):
        raise InputError(f"--over {text}", "a bracket is not closed", "write lists as [1024,256]")


def _divided(part: str) -> tuple[str, str, str]:
    """A field's name and its first value; a part in brackets or quotes is a value as a whole."""
    if part[0] in "[{\"'":
        return "", "", part
    name, equals, first = part.partition("=")
    return name.strip(), equals, first.strip()


def _value(text: str) -> Setting:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text.strip("\"'")
