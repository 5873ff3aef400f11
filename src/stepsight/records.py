"""Reading TOML tables into records: every key known, every value of its type, or a clear error."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stepsight.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Record = TypeVar("Record")
Table = dict[str, Any]


def read_toml(path: Path) -> Table:
    """The tables of a TOML file; syntax errors name the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(str(path), "no such file", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"not valid TOML: {error}", "fix the syntax there") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean "x"?`` or the list of what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(names)}"


def record(kind: type[Record], table: Mapping[str, Any], where: str) -> Record:
    """A dataclass of `kind` from a table; unknown, missing and ill-typed keys are errors."""
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise InputError(f"{where}.{key}", "unknown key", nearest(key, known))
    try:
        return msgspec.convert(dict(table), type=kind, strict=True)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else ""
        problem = str(error).partition(" - at ")[0]
        raise InputError(f"{where}.{field}" if field else where, problem, "correct the value") from None


def override(table: Table, assignments: Iterable[str]) -> Table:
    """A copy of the table with each ``a.b=value`` put in (the value read as TOML, else as text)."""
    result: Table = msgspec.convert(msgspec.to_builtins(table), type=dict)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise InputError(f"--set {assignment}", "not an assignment", "write key.path=value")
        try:
            value: Any = tomllib.loads(f"x = {text}")["x"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        _put(result, path.strip().split("."), value, f"--set {assignment}")
    return result


def _put(node: Any, keys: list[str], value: Any, where: str) -> None:
    for i, key in enumerate(keys):
        last = i == len(keys) - 1
        if isinstance(node, list):
            if not key.isdigit() or int(key) >= len(node):
                raise InputError(where, f"{key!r} is not one of the {len(node)} entries", "count from 0")
            if last:
                node[int(key)] = value
            else:
                node = node[int(key)]
        elif isinstance(node, dict):
            if last:
                node[key] = value
            else:
                node = node.setdefault(key, {})
        else:
            raise InputError(where, f"{keys[i - 1]!r} is a value, not a table", "shorten the path")
