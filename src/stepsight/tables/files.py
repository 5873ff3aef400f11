"""Tables as people keep them: a CSV, or the JSON of a TorchRec ``EmbeddingBagConfig`` list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsight.errors import InputError
from stepsight.inputs import csv_records, json_of, number, read_text, whole
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.table import Table, check_tables

TORCHREC_DTYPES = {
    "FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT8": "int8", "FP8": "fp8", "INT4": "int4",
}  # fmt: skip
"""TorchRec's ``DataType`` values and what stepsight calls them."""
_CSV_COLUMNS = ("name", "rows", "dim", "pooling")
_CSV_OPTIONAL = ("zipf", "dtype", "features")


def read_tables(path: str | Path) -> tuple[Table, ...]:
    """Tables from ``.csv`` (name, rows, dim, pooling; zipf, dtype, features optional) or ``.json``."""
    path = Path(path)
    text = read_text(path, "name a .csv or .json file")
    tables = _from_json(text, str(path)) if path.suffix.lower() == ".json" else _from_csv(text, str(path))
    check_tables(tables, str(path))
    return tables


def tables_from_configs(configs: Sequence[Mapping[str, Any]], where: str = "tables") -> tuple[Table, ...]:
    """Tables from ``EmbeddingBagConfig`` fields.

    TorchRec keeps the pooling factor next to the config (in ``ParameterConstraints``); here it
    may stand in the entry as ``pooling_factor``, or ``pooling_factors`` with one value a
    feature. Without it TorchRec plans with 1.0, and so do we.
    """
    return tuple(_from_config(config, f"{where}[{i}]") for i, config in enumerate(configs))


def _from_json(text: str, where: str) -> tuple[Table, ...]:
    document = json_of(text, where, "give a list of EmbeddingBagConfig objects")
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
    for key in ("feature_names", "pooling_factors"):
        if config.get(key) is not None and not isinstance(config[key], list):
            raise InputError(where, f"{key} is {config[key]!r}", "an EmbeddingBagConfig has a list there")
    features = max(1, len(config.get("feature_names") or ()))
    given = config.get("pooling_factors") or [config.get("pooling_factor", 1.0)]
    factors = [number(factor, f"{where}.pooling_factor") for factor in given]
    data_type = str(config.get("data_type", "FP32")).rsplit(".", 1)[-1].upper()
    if data_type not in TORCHREC_DTYPES:
        raise InputError(where, f"data_type is {data_type!r}", f"one of {', '.join(TORCHREC_DTYPES)}")
    return Table(
        name=str(config.get("name") or f"table_{where}"),
        rows=whole(config["num_embeddings"], f"{where}.num_embeddings"),
        dim=whole(config["embedding_dim"], f"{where}.embedding_dim"),
        pooling=sum(factors) / len(factors),
        indices=IndexDistribution.parse(config.get("indices"), f"{where}.indices"),
        dtype=TORCHREC_DTYPES[data_type],
        features=features,
    )


def _from_csv(text: str, where: str) -> tuple[Table, ...]:
    records = csv_records(text, where, _CSV_COLUMNS[1:])
    unknown = set(records[0][1]) - {*_CSV_COLUMNS, *_CSV_OPTIONAL} if records else set()
    if unknown:
        raise InputError(
            where, f"unknown column {', '.join(sorted(unknown))}",
            f"columns: {', '.join(_CSV_COLUMNS)}, and perhaps {', '.join(_CSV_OPTIONAL)}",
        )  # fmt: skip
    return tuple(_from_row(row, f"{where}:{line}", i) for i, (line, row) in enumerate(records))


def _from_row(row: Mapping[str, str], where: str, position: int) -> Table:
    zipf = number(row.get("zipf") or 0.0, f"{where}: zipf")
    return Table(
        name=row.get("name") or f"table_{position}",
        rows=whole(row["rows"], f"{where}: rows"),
        dim=whole(row["dim"], f"{where}: dim"),
        pooling=number(row["pooling"], f"{where}: pooling"),
        indices=IndexDistribution.zipf(zipf) if zipf else IndexDistribution.uniform(),
        dtype=row.get("dtype") or "fp32",
        features=whole(row.get("features") or 1, f"{where}: features"),
    )
