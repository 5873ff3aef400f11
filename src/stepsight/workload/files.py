"""Workload files: TOML in, checked at the edge, `Workload` out."""

from __future__ import annotations

from pathlib import Path

from stepsight.errors import InputError
from stepsight.workload.dlrm import DlrmWorkload
from stepsight.workload.dlrm_config import read_dlrm
from stepsight.workload.fields import Overrides, apply_overrides, read_toml, suggestion
from stepsight.workload.transformer import TransformerWorkload
from stepsight.workload.transformer_config import read_transformer

Workload = DlrmWorkload | TransformerWorkload
KINDS = ("dlrm", "transformer")


def load_workload(path: str | Path, overrides: Overrides = ()) -> Workload:
    """Read a workload file; ``overrides`` are ``key.path=value`` pairs set before it is checked."""
    document = read_toml(path)
    apply_overrides(document, overrides, str(path))
    return parse_workload(document, str(path))


def parse_workload(document: dict[str, object], where: str) -> Workload:
    """A workload from the content of a workload file; ``where`` names it in errors."""
    kind = document.get("kind")
    if kind == "dlrm":
        return DlrmWorkload(read_dlrm(document, where))
    if kind == "transformer":
        return TransformerWorkload(read_transformer(document, where))
    if kind is None:
        raise InputError(f"{where}: kind", "is missing", f'write kind = "{KINDS[0]}" or "{KINDS[1]}"')
    raise InputError(f"{where}: kind", f"unknown kind {kind!r}", suggestion(str(kind), KINDS))
