"""PyTorch execution traces (ET): the operators of a step with shapes and tensor identities.

Schemas 1.0.0–1.0.x keep fields flat on the node; from 1.0.2-chakra on they lie under
``inputs``, ``outputs`` and ``attrs``. Both read into the same node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from stepsight.errors import InputError
from stepsight.trace.reading.files import TraceFile, mended, salvaged


@dataclass(frozen=True, slots=True)
class EtNode:
    """One operator (or thread, or kernel) of an execution trace.

    ``record_id`` is the record-function id that Kineto repeats; ``category`` is set on kernels.
    """

    id: int
    name: str
    record_id: int = -1
    thread: int = 0
    shapes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    category: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The nodes of one rank in file order."""

    path: str
    schema: str
    nodes: tuple[EtNode, ...]
    warnings: tuple[str, ...] = ()
    pid: int = -1

    @property
    def operators(self) -> list[EtNode]:
        """The nodes that stand for host operators: no threads, no markers, no kernels."""
        return [n for n in self.nodes if not n.category and not n.name.startswith(("[", "##"))]


def looks_like_et(content: bytes) -> bool:
    """Whether the bytes are an execution trace."""
    head = content[:4096]
    return b'"schema"' in head and b'"nodes"' in content[:65536]


def read_execution_trace(file: TraceFile) -> ExecutionTrace:
    """Read an ET of any schema; a cut file gives the nodes it still holds."""
    document, warnings = _document(file)
    listed = _list(document.get("nodes"))
    nodes = [node for raw in listed if (node := _node(raw)) is not None]
    if nodes and len(nodes) < len(listed):
        warnings = [*warnings, f"{file.name}: {len(listed) - len(nodes)} odd nodes were left out"]
    if not nodes:
        raise InputError(file.path, "holds no execution-trace nodes", "record it again")
    return ExecutionTrace(
        file.path, str(document.get("schema", "")), tuple(nodes), (*file.warnings, *warnings),
        _whole(document.get("pid")),
    )  # fmt: skip


def _document(file: TraceFile) -> tuple[dict[str, Any], list[str]]:
    for mend in (False, True):
        try:
            whole = msgspec.json.decode(mended(file.content) if mend else file.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(whole, dict):
            return whole, []
    partial, lost = salvaged(mended(file.content))
    return partial, [
        f"{file.name}: cut or broken JSON; {len(_list(partial.get('nodes')))} nodes read, {lost} bytes lost"
    ]


def _node(raw: Any) -> EtNode | None:
    """A node; None for what is none."""
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), int) or "name" not in raw:
        return None
    nested = isinstance(raw.get("attrs"), list)
    attributes = [a for a in _list(raw.get("attrs")) if isinstance(a, dict)]
    fields = {str(a.get("name")): a.get("value") for a in attributes} if nested else raw
    inputs = raw["inputs"] if isinstance(raw.get("inputs"), dict) else {}
    return EtNode(
        raw["id"], str(raw["name"]), _whole(fields.get("rf_id")), _whole(fields.get("tid"), 0),
        tuple(_list(inputs.get("shapes") if nested else raw.get("input_shapes"))),
        tuple(map(str, _list(inputs.get("types") if nested else raw.get("input_types")))),
        str(raw.get("cat", "")),
    )  # fmt: skip


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any, default: int = -1) -> int:
    return int(value) if isinstance(value, int | float) and abs(value) < 2**63 else default


def looks_like_chakra(file: TraceFile) -> bool:
    """Whether a file is Chakra's, by its name or by its first JSON object."""
    if file.path.endswith(".et"):
        return True
    head = file.content[:2048]
    return b'"attr"' in head and b'"schema"' in head and b'"nodes"' not in head
