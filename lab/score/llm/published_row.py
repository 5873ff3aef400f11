"""A row of a published table as readers see it, and what they make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, str]
Read = tuple[dict[str, Any], str, tuple[str, ...]] | str
"""A description, its platform and changes of it; or what the row lacks."""


def whole(row: Row, column: str) -> int:
    """A whole number."""
    return int(float(row[column]))


def platform_name(gpus: int, per_node: int, gpu: str, nic: str) -> str:
    """So many GPUs in nodes of ``per_node``."""
    nodes = -(-gpus // per_node)
    return f"{min(gpus, per_node)}x{gpu}" if nodes == 1 else f"{nodes}x{per_node}x{gpu}-{nic}"
