"""Small damage to a good input: bytes, lines, values, structure. The same seed makes the same damage."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

ODD_NUMBERS = ("nan", "inf", "-inf", "0", "-1", "1e300", "1e-300", "99999999999999999999", "0x10", "1.2.3")
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e300, 2**63, 10**30, "", "x", "nan", [], [[]], {}, {"a": 1}, [None], "0" * 5000,
)  # fmt: skip
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def mutated_text(text: str, rng: random.Random) -> bytes:
    """Text with one to three kinds of damage."""
    raw = text
    for _ in range(rng.randint(1, 2)):
        raw = rng.choice(
            (_number, _number, _number, _drop_line, _repeat_line, _swap_lines, _cut, _insert, _delete)
        )(raw, rng)
    data = raw.encode("utf-8", "surrogatepass")
    return _flip(data, rng) if rng.random() < 0.1 else data


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Binary data with flipped, cut or repeated bytes."""
    return rng.choice((_flip, _cut_bytes, _repeat_bytes))(data, rng)


def mutated_json(value: Any, rng: random.Random) -> bytes:
    """JSON with odd values, missing and repeated entries; sometimes the text itself is damaged."""
    changed = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 4)):
        changed = _change(changed, rng)
    text = json.dumps(changed)
    if rng.random() < 0.02:
        text = "[" * 2000 + text + "]" * 2000
    return mutated_text(text, rng) if rng.random() < 0.15 else text.encode()


def _change(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        how = rng.random()
        if how < 0.15:
            del value[key]
        elif how < 0.3:
            value[key] = _odd(rng)
        else:
            value[key] = _change(value[key], rng)
        return value
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        how = rng.random()
        if how < 0.1:
            del value[at]
        elif how < 0.2:
            value.insert(at, value[at])
        elif how < 0.3:
            value[at] = _odd(rng)
        else:
            value[at] = _change(value[at], rng)
        return value
    return _odd(rng)


def _odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(ODD_VALUES))


def _number(text: str, rng: random.Random) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    return text[: match.start()] + rng.choice(ODD_NUMBERS) + text[match.end() :]


def _drop_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _repeat_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    return "\n".join([*lines[:at], *[lines[at]] * rng.choice((2, 50)), *lines[at + 1 :]])


def _swap_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _insert(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return (
        text[:at] + rng.choice(("\x00", "é", "[", "]", '"', "=", ",", "{", "9" * 400, "[" * 3000)) + text[at:]
    )


def _delete(text: str, rng: random.Random) -> str:
    if not text:
        return text
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.randint(1, 20) :]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut_bytes(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _repeat_bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at : at + 64] * 3 + data[at:]
