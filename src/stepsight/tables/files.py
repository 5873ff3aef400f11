"""Tables as people keep them: a CSV, or the JSON of a TorchRec ``EmbeddingBagConfig`` list."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepsight.errors import InputError
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.table import Table, check_tables

TORCHREC_DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8", "FP8": "fp8"}
"""TorchRec's ``DataType`` values and what stepsight calls them."""
_CSV_COLUMNS = ("name", "rows", "dim", "pooling")
_CSV_OPTIONAL = ("zipf", "dtype", "features")


def read_tables(path: str | Path) -> tuple[Table, ...]:
    """Tables from ``.csv`` (name, rows, dim, pooling; zipf, dtype, features optional) or ``.json``."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be read ({error})", "name a .csv or .json file") from None
    tables = _from_json(text, str(path)) if path.suffix.lower() == ".json" else _from_csv(text, str(path))
    check_tables(tables, str(path))
    return tables


def tables_from_configs(configs: Sequence[Mapping[str, Any]], where: str = "tables") -> tuple[Table, ...]:
    """Tables from ``EmbeddingBagConfig`` fields.

    TorchRec keeps the pooling factor beside the config (in ``ParameterConstraints``); here it
    may stand in the entry as ``pooling_factor``, or ``pooling_factors`` with one value a
    feature. Without it TorchRec plans with 1.0, and so do we.
    """
    return tuple(_from_config(config, f"{where}[{i}]") for i, config in enumerate(configs))


def _from_json(text: str, where: str) -> tuple[Table, ...]:
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InputError(
            where, f"is not JSON: {error}", "give a list of EmbeddingBagConfig objects"
        ) from None
    if isinstance(document, Mapping):
        document = document.get("tables", document)
    if not isinstance(document, list) or not all(isinstance(entry, Mapping) for entry in document):
        raise InputError(where, "is not a list of tables", "give a list of EmbeddingBagConfig objects")
    return tables_from_configs(document, where)


def _from_config(config: Mapping[str, Any], where: str) -> Table:
    for key in ("num_embeddings", "embedding_dim"):
        if not isinstance(config.get(key), int):
            raise InputError(
                where, f"{key} is {config.get(key)!r}", "an EmbeddingBagConfig names it as a whole number"
            )
    features = max(1, len(config.get("feature_names") or ()))
    factors = config.get("pooling_factors") or [config.get("pooling_factor", 1.0)]
    data_type = str(config.get("data_type", "FP32")).rsplit(".", 1)[-1].upper()
    if data_type not in TORCHREC_DTYPES:
        raise InputError(where, f"data_type is {data_type!r}", f"one of {', '.join(TORCHREC_DTYPES)}")
    return Table(
        name=str(config.get("name") or f"table_{where}"),
        rows=config["num_embeddings"],
        dim=config["embedding_dim"],
        pooling=_number(sum(factors) / len(factors), where, "pooling_factor"),
        indices=IndexDistribution.parse(config.get("indices"), f"{where}.indices"),
        dtype=TORCHREC_DTYPES[data_type],
        features=features,
    )


def _from_csv(text: str, where: str) -> tuple[Table, ...]:
    reader = csv.DictReader(text.splitlines())
    columns = tuple(name.strip() for name in reader.fieldnames or ())
    missing = [name for name in _CSV_COLUMNS[1:] if name not in columns]
    if missing:
        raise InputError(
            where,
            f"has no column {', '.join(missing)}",
            f"columns: {', '.join(_CSV_COLUMNS)}, and perhaps {', '.join(_CSV_OPTIONAL)}",
        )
    return tuple(
        _from_row(
            {(key or "").strip(): (value or "").strip() for key, value in row.items()}, f"{where}:{line}", i
        )
        for i, (line, row) in enumerate(enumerate(reader, start=2))
    )


def _from_row(row: Mapping[str, str], where: str, position: int) -> Table:
    zipf = _number(row.get("zipf") or 0.0, where, "zipf")
    return Table(
        name=row.get("name") or f"table_{position}",
        rows=int(_number(row["rows"], where, "rows")),
        dim=int(_number(row["dim"], where, "dim")),
        pooling=_number(row["pooling"], where, "pooling"),
        indices=IndexDistribution.zipf(zipf) if zipf else IndexDistribution.uniform(),
        dtype=row.get("dtype") or "fp32",
        features=int(_number(row.get("features") or 1, where, "features")),
    )


def _number(value: object, where: str, field: str) -> float:
    try:
        return float(str(value).replace("_", ""))
    except ValueError:
        raise InputError(where, f"{field} is {value!r}", "give a number") from None
