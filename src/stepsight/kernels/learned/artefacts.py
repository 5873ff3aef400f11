"""Fitted kernel models on disk: one .npz holds the models of one table, arrays plus a line of JSON.

The shipped ones lie in ``kernels/artefacts``; a calibrated platform carries its own in the same
format, written by the same code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepsight.errors import InputError
from stepsight.kernels.learned.events import EventPath
from stepsight.kernels.learned.model import LIGHT, LearnedModel, Provenance
from stepsight.kernels.learned.trees import ObliviousTrees
from stepsight.kernels.machine import Machine

SHIPPED = Path(__file__).parents[1] / "artefacts"
FORMAT = 1


def save_models(path: Path, models: Sequence[LearnedModel]) -> None:
    """Write models into one compressed .npz; thresholds go as 8-bit indices into shared edges."""
    arrays: dict[str, Any] = {}
    headers = []
    for i, model in enumerate(models):
        headers.append(_header(model))
        edges, index = np.unique(model.trees.threshold, return_inverse=True)
        arrays[f"{i}_feature"] = model.trees.feature.astype(np.uint8)
        arrays[f"{i}_edges"] = edges.astype(np.float32)
        arrays[f"{i}_threshold"] = index.reshape(model.trees.threshold.shape).astype(np.uint16)
        arrays[f"{i}_leaf"] = model.trees.leaf.astype(np.float16)
    text = json.dumps({"format": FORMAT, "models": headers}, sort_keys=True)
    arrays["header"] = np.frombuffer(text.encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez_compressed(file, **arrays)
    draft.replace(path)  # a reader never meets half a file


def load_models(path: Path) -> list[LearnedModel]:
    """The models of one .npz."""
    try:
        with np.load(path) as arrays:
            header = json.loads(arrays["header"].tobytes().decode())
            if header["format"] != FORMAT:
                raise InputError(str(path), f"format {header['format']} is not {FORMAT}", "fit it again")
            return [_model(record, arrays, i) for i, record in enumerate(header["models"])]
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            str(path), f"not a kernel artefact ({error})", "write it with python -m lab fit"
        ) from error


def models_in(folder: Path) -> Iterator[LearnedModel]:
    """Every model of every artefact in a folder, in the order of file names."""
    for path in sorted(folder.glob("*.npz")):
        yield from load_models(path)


@lru_cache(maxsize=1)
def shipped_models() -> tuple[LearnedModel, ...]:
    """The models that come with stepsight."""
    return tuple(models_in(SHIPPED))


def _header(model: LearnedModel) -> dict[str, Any]:
    return {
        "family": model.family,
        "dtype": model.dtype,
        "variant": model.variant,
        "features": model.features,
        "columns": model.columns,
        "machine": asdict(model.machine),
        "bias": model.trees.bias,
        "low": model.low,
        "high": model.high,
        "spread": model.spread,
        "provenance": asdict(model.provenance),
        "path": asdict(model.path),
        "stacks": model.stacks,
        "base": model.base,
    }


def _model(record: dict[str, Any], arrays: Any, i: int) -> LearnedModel:
    trees = ObliviousTrees(
        arrays[f"{i}_feature"].astype(np.int64),
        arrays[f"{i}_edges"][arrays[f"{i}_threshold"]],
        arrays[f"{i}_leaf"].astype(np.float32),
        record["bias"],
    )
    return LearnedModel(
        family=record["family"],
        dtype=record["dtype"],
        variant=record["variant"],
        features=record["features"],
        columns=tuple(record["columns"]),
        machine=Machine(**record["machine"]),
        trees=trees,
        low=tuple(record["low"]),
        high=tuple(record["high"]),
        spread=record["spread"],
        provenance=Provenance(**record["provenance"]),
        path=EventPath(**record["path"]),
        stacks=tuple(record["stacks"]),
        base=record.get("base", LIGHT),
    )
