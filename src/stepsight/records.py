"""Reading TOML tables into records: every key known, every value of its type, or a clear error."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stepsight.errors import InputError
from stepsight.inputs import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Record = TypeVar("Record")
Table = dict[str, Any]
Assignments = Mapping[str, str] | Iterable[str]
"""``key.path=value`` texts, or key paths with the text of their value."""


_DURATION = re.compile(r"(\d+(?:\.\d*)?)\s*([a-z]*)")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(text: str, where: str) -> float:
    """``500ms``, ``5s``, ``2m``, ``1h``; a bare number is seconds, in every command."""
    match = _DURATION.fullmatch(text.strip().lower())
    if not match or match[2] not in _SECONDS:
        raise InputError(where, f"{text!r} is not a length of time", "write 500ms, 5s, 2m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def read_toml(path: str | Path) -> Table:
    """The tables of a TOML file; syntax errors name the file and the line."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, where: str) -> Table:
    """The tables of a TOML file's content."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(where, "is nested too deeply to be real", "fix the brackets") from None
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise InputError(where, f"not valid TOML: {error}", "fix the syntax there") from None


_CLOSE, _CLOSE_AND_SHORT, _SHORT = 0.8, 0.75, 5
"""Shares of letters in common from which on a name is taken for another; in short names one letter weighs
more."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant: a few letters off, or one goes on where the other ends
    (``sequence_length``, ``sequence``)."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, 1, _CLOSE_AND_SHORT if len(name) <= _SHORT else _CLOSE)
    longer = [n for n in names if _continues(n, name) or _continues(name, n)]
    return close[0] if close else max(longer, key=len) if longer else None


def _continues(longer: str, shorter: str) -> bool:
    return len(shorter) > 1 and longer.startswith(shorter) and longer[len(shorter) :][:1] in ("_", "-", ".")


FEW = 12
"""Names that are listed whole next to the one that was probably meant."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` where a name is close, and the list of what there is; of a long list, up to three
    names."""
    names = sorted(set(known))
    close = closest(name, names)
    listed = f"known: {', '.join(names)}"
    if close is None:
        return listed
    if len(names) <= FEW:
        return f"did you mean {close!r}? ({listed})"
    near = list(dict.fromkeys([close, *difflib.get_close_matches(name, names, 3)]))[:3]
    return f"did you mean {either([repr(one) for one in near])}?"


def either(names: Sequence[str]) -> str:
    """``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def section(given: object, known: Iterable[str], where: str) -> Table:
    """A table of a file that holds no other keys than these."""
    if not isinstance(given, dict):
        raise InputError(where, f"must be a table, not {given!r}", f"write it as [{where.split()[-1]}]")
    for key in given:
        if key not in known:
            raise InputError(f"{where}.{key}", "unknown key", nearest(key, known))
    return given


def record(kind: type[Record], table: object, where: str) -> Record:
    """A dataclass of `kind` from a table; unknown, missing and ill-typed keys are errors."""
    table = section(table, [f.name for f in dataclasses.fields(kind)], where)  # type: ignore[arg-type]
    _refuse_non_finite(table, where)
    try:
        return msgspec.convert(table, type=kind, strict=True)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else ""
        problem = _in_words(str(error).partition(" - at ")[0])
        raise InputError(f"{where}.{field}" if field else where, problem, "correct the value") from None


_TYPES = {
    "int": "a whole number", "float": "a number", "str": "text in quotes", "bool": "true or false",
    "object": "a table", "array": "a list", "null": "nothing",
}  # fmt: skip


def _in_words(problem: str) -> str:
    """A decoder's message in the words of the file: ``must be a whole number, not text in quotes``."""
    wrong = re.fullmatch(r"Expected `([^`]+)`, got `([^`]+)`", problem)
    if wrong:
        wanted = " or ".join(_TYPES.get(part.strip(), part.strip()) for part in wrong[1].split("|"))
        return f"must be {wanted}, not {_TYPES.get(wrong[2], wrong[2])}"
    missing = re.fullmatch(r"Object missing required field `([^`]+)`", problem)
    return f"lacks {missing[1]}" if missing else problem


def _refuse_non_finite(value: object, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(where, f"is {value}", "give a finite number")
    if isinstance(value, Mapping):
        for key, entry in value.items():
            _refuse_non_finite(entry, f"{where}.{key}")


def override(table: Mapping[str, Any], assignments: Assignments, where: str) -> Table:
    """A copy of the table with each ``a.b=value`` put in (the value read as TOML, else as text).

    ``tables.0.rows`` names one entry of a list, ``tables.rows`` that field of all of them.
    """
    result: Table = copy.deepcopy(dict(table))
    for path, text in assigned(assignments):
        _put(result, path.split("."), _value(text), f"{where}: --set {path}={text}")
    return result


def assigned(assignments: Assignments) -> list[tuple[str, str]]:
    """Key paths and the text to set them to."""
    if isinstance(assignments, Mapping):
        return list(assignments.items())
    return [_pair(text) for text in assignments]


def _pair(assignment: str) -> tuple[str, str]:
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set {assignment}", "is not key.path=value", "for example --set parallel.ranks=4")
    return path.strip(), text.strip()


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _put(node: Any, path: list[str], value: Any, where: str) -> None:
    head, rest = path[0], path[1:]
    if isinstance(node, list):
        if head.isdigit() and int(head) >= len(node):
            raise InputError(where, f"there are only {len(node)} entries", "count from 0")
        if head.isdigit() and not rest:
            node[int(head)] = value
            return
        for entry in [node[int(head)]] if head.isdigit() else node:
            _put(entry, rest if head.isdigit() else path, value, where)
    elif not isinstance(node, dict):
        raise InputError(where, "goes below a plain value", "name a field of the file")
    elif rest:
        _put(node.setdefault(head, {}), rest, value, where)
    else:
        node[head] = value
