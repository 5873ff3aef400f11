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


def mutated_trace(document: dict[str, Any], rng: random.Random) -> bytes:
    """A profiler trace with damaged times, names, copies, numbers of ranks or device properties."""
    changed = copy.deepcopy(document)
    for _ in range(rng.randint(1, 2)):
        rng.choice(_TRACE_DAMAGE)(changed, rng)
    return json.dumps(changed).encode()


def _each_event(change: Any, share: float = 1.0) -> Any:
    def damage(document: dict[str, Any], rng: random.Random) -> None:
        for event in document["traceEvents"]:
            if rng.random() < share:
                change(event, rng)

    return damage


def _twice(document: dict[str, Any], rng: random.Random) -> None:
    document["traceEvents"] = document["traceEvents"] * rng.randint(2, 3)


def _some_left_out(document: dict[str, Any], rng: random.Random) -> None:
    kind = rng.choice(("kernel", "cuda_runtime", "cpu_op", "user_annotation"))
    document["traceEvents"] = [e for e in document["traceEvents"] if e.get("cat") != kind]


def _odd_ranks(document: dict[str, Any], rng: random.Random) -> None:
    field = rng.choice(("rank", "world_size", "pg_config"))
    number = rng.choice((-1, 0, 7, 10**5, 10**9, 2**62))
    info = document.setdefault("distributedInfo", {"rank": 0, "world_size": 1})
    info[field] = [{"pg_name": "0", "ranks": [0, number]}] if field == "pg_config" else number


def _odd_device(document: dict[str, Any], rng: random.Random) -> None:
    name = rng.choice(("Tesla V100-SXM2-16GB", "NVIDIA Unheard-of", "", "\x1b[31mred\x07", "x" * 3000))
    odd = (-1, 0, "many", 1e9, True, None, [1], 10**30)
    document["deviceProperties"] = [
        {
            "id": 0,
            "name": name,
            "numSms": rng.choice(odd),
            "totalGlobalMem": rng.choice(odd),
            "computeMajor": 8,
        }
    ]


def _set(field: str, *values: Any) -> Any:
    return lambda event, rng: event.__setitem__(field, rng.choice(values))


def _argument(field: str, *values: Any) -> Any:
    return lambda event, rng: event.setdefault("args", {}).__setitem__(field, rng.choice(values))


def _scaled(field: str, *factors: float) -> Any:
    return lambda event, rng: event.__setitem__(field, event.get(field, 0) * rng.choice(factors))


_TRACE_DAMAGE = (
    _twice, _some_left_out, _odd_ranks, _odd_device,
    _each_event(_set("ts", 100.0)), _each_event(_set("dur", -600, 0, 1e12, -1e-9), 0.3),
    _each_event(_scaled("ts", -1.0)), _each_event(_scaled("ts", 1e12)),
    _each_event(_scaled("dur", 1e9, 1e-9)),
    _each_event(_set("name", "", "myLaunch", "\x1b]0;title\x07", "n" * 3000), 0.3),
    _each_event(_set("cat", "kernel", "cpu_op", "cuda_runtime", "other"), 0.1),
    _each_event(_argument("correlation", 7, -1, 2**40), 0.5),
    _each_event(_argument("stream", 7, "x", -1), 0.5),
    _each_event(_argument("grid", [0, 1, 1], [-1], [2**31 - 1] * 3, "x", []), 0.5),
    _each_event(_argument("Group size", 2, -1, 10**9), 0.5),
    _each_event(_argument("Input Dims", [[-1]], [[10**9, 10**9]], [[[]]], "x", [[0, 5]]), 0.5),
    _each_event(_set("tid", 1, "main", -5), 0.5),
)  # fmt: skip


def mutated_execution_trace(document: dict[str, Any], rng: random.Random) -> bytes:
    """An execution trace, flat or with attributes, with damaged sizes, identities, threads or counts."""
    changed = copy.deepcopy(document)
    if rng.random() < 0.5:
        changed = _with_attributes(changed)
    for _ in range(rng.randint(1, 3)):
        rng.choice(_NODE_DAMAGE)(changed, rng)
    return json.dumps(changed).encode()


def _with_attributes(document: dict[str, Any]) -> dict[str, Any]:
    """The same nodes as schemas from 1.0.2-chakra on write them."""
    nodes = [
        {
            "id": n["id"], "name": n["name"], "ctrl_deps": n["parent"],
            "inputs": {"values": n["inputs"], "shapes": n["input_shapes"], "types": n["input_types"]},
            "outputs": {"values": [], "shapes": [], "types": []},
            "attrs": [{"name": key, "type": "uint64", "value": n[key]} for key in ("rf_id", "seq_id", "tid")],
        }
        for n in document["nodes"]
    ]  # fmt: skip
    return {**document, "schema": "1.1.1-chakra.0.0.4", "nodes": nodes}


def _each_node(change: Any, share: float = 1.0) -> Any:
    def damage(document: dict[str, Any], rng: random.Random) -> None:
        for node in document["nodes"]:
            if rng.random() < share:
                change(node, rng)

    return damage


def _sizes(*values: Any) -> Any:
    def change(node: dict[str, Any], rng: random.Random) -> None:
        value = rng.choice(values)
        if "input_shapes" in node:
            node["input_shapes"] = value
        elif isinstance(node.get("inputs"), dict):
            node["inputs"]["shapes"] = value

    return change


def _attribute(field: str, *values: Any) -> Any:
    def change(node: dict[str, Any], rng: random.Random) -> None:
        if "attrs" in node:
            node["attrs"] = [{"name": field, "value": rng.choice(values)}, *node["attrs"]]
        else:
            node[field] = rng.choice(values)

    return change


def _many_nodes(document: dict[str, Any], rng: random.Random) -> None:
    times = max(1, min(rng.choice((2, 50, 600)), 20_000 // len(document["nodes"])))
    document["nodes"] = [dict(node) for node in document["nodes"] * times]


def _document_field(field: str, *values: Any) -> Any:
    return lambda document, rng: document.__setitem__(field, rng.choice(values))


_NODE_DAMAGE = (
    _many_nodes, _document_field("pid", -1, 10**9, "seven", None),
    _document_field("schema", "9.9", "", 4, None),
    _each_node(_sizes([[-1]], [[10**9, 10**9]], [[[]]], "x", [[0, 5]], [[2**70]], None, [[1.5]], {}), 0.6),
    _each_node(_attribute("rf_id", 1, -1, 2**70, "x", None), 0.6),
    _each_node(_attribute("tid", 1, -5, "main", 2**70), 0.6),
    _each_node(_set("id", 10, -1, "x", 2**70, None), 0.5),
    _each_node(_set("name", "aten::relu", "", 7, "\x1b]0;title\x07", "n" * 3000), 0.6),
    _each_node(_set("parent", 10, -1, 2**70, "x"), 0.5),
    _each_node(_set("attrs", [], "x", [7], {"a": 1}), 0.3),
    _each_node(_set("input_types", ["Tensor(nothing)"] * 3, [[]], "x", [None]), 0.5),
)  # fmt: skip
