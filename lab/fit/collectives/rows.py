"""Rows of collective measurements as columns, from the tables that the catalogue is fitted on.

Needs pyarrow (extra ``fit``); nothing that predicts imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.datasets.folder import serving_folder
from stepsight.errors import InputError
from stepsight.estimate import FloatArray, IntArray

TextArray = npt.NDArray[np.str_]

KIND_NAMES = {"sendrecv": "send_recv", "alltoall": "all_to_all"}
"""Collectives that sources call otherwise."""
UNSTATED = ""
CURVE_KEY = ("source", "platform", "ranks", "nodes", "kind", "in_place", "nccl_version", "dtype")


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """One message size of one run in every row. Text columns are empty where unstated."""

    source: TextArray
    platform: TextArray
    interconnect: TextArray
    kind: TextArray
    in_place: TextArray
    nccl_version: TextArray
    dtype: TextArray
    ranks: IntArray
    nodes: IntArray
    bytes: FloatArray
    time_us: FloatArray

    def __len__(self) -> int:
        return len(self.bytes)

    def where(self, mask: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> MeasuredRows:
        return MeasuredRows(**{name: getattr(self, name)[mask] for name in self.__slots__})

    @classmethod
    def concatenate(cls, parts: Sequence[MeasuredRows]) -> MeasuredRows:
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in cls.__slots__})

    def groups(self, key: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], MeasuredRows]]:
        """Rows identical in the named columns, in the order of those columns."""
        columns = [getattr(self, name) for name in key]
        order = np.lexsort(columns[::-1])
        if not len(order):
            return
        changed = np.zeros(len(order), dtype=bool)
        for column in columns:
            ordered = column[order]
            changed[1:] |= ordered[1:] != ordered[:-1]
        for part in np.split(order, np.flatnonzero(changed)):
            rows = self.where(part)
            yield tuple(getattr(rows, name)[0] for name in key), rows


def read_nccl(folder: Path) -> MeasuredRows:
    """The table of nccl-tests runs (``collectives/nccl.parquet`` of the measured data)."""
    import pyarrow.parquet

    path = folder / "collectives" / "nccl.parquet"
    if not path.is_file():
        raise InputError(str(path), "no such table", "pass --data with the folder of measured tables")
    table = pyarrow.parquet.read_table(path).to_pydict()
    kinds = [KIND_NAMES.get(kind, kind) for kind in table["collective"]]
    texts = ("source", "platform", "interconnect", "in_place", "nccl_version", "dtype")
    return _rows(
        table["n_gpus"], table["n_nodes"], table["bytes"], table["time_us"], kind=kinds,
        **{name: table[name] for name in texts},
    )  # fmt: skip


def read_aiconfigurator(system: str, dtypes: Sequence[str] = ("half",)) -> MeasuredRows:
    """A system's NCCL tables of aiconfigurator-core: latency in ms, message sizes in elements.

    By default only half precision: NCCL sums int8 by other algorithms than those training uses.
    """
    import pyarrow.parquet

    root = serving_folder() / system / "comm" / "nccl"
    parts = []
    for path in sorted(root.glob("*/nccl_perf.parquet")):
        table = pyarrow.parquet.read_table(path).to_pydict()
        rows = _rows(
            table["num_gpus"], 1, _element_bytes(table["nccl_dtype"]) * np.array(table["message_size"]),
            1e3 * np.array(table["latency"]), source="aiconfigurator", platform=system,
            kind=[KIND_NAMES.get(kind, kind) for kind in table["op_name"]], nccl_version=path.parent.name,
            dtype=table["nccl_dtype"],
        )  # fmt: skip
        parts.append(rows.where(np.isin(rows.dtype, list(dtypes))))
    if not parts:
        raise InputError(str(root), "no NCCL tables of this system", "check aiconfigurator-core's version")
    return MeasuredRows.concatenate(parts)


def read_paper(path: Path) -> MeasuredRows:
    """Times read off a published plot of 4×V100: the latency series."""
    import pyarrow.csv

    table = pyarrow.csv.read_csv(path).to_pydict()
    kept = [i for i, quantity in enumerate(table["quantity"]) if quantity == "latency_us"]
    return _rows(
        4, 1, 2.0 ** np.array([table["log2_bytes"][i] for i in kept]), [table["value"][i] for i in kept],
        source="paper_4xV100", platform="4xV100 (published plot)",
        kind=[table["collective"][i] for i in kept],
    )  # fmt: skip


def _rows(ranks: Any, nodes: Any, bytes_: Any, time_us: Any, **texts: str | Sequence[Any]) -> MeasuredRows:
    """Rows from columns, or from one value for all of them; texts that are not given are unstated."""
    n = len(time_us)

    def text(name: str) -> TextArray:
        given = texts.get(name, UNSTATED)
        values = [given] * n if isinstance(given, str) else given
        return np.array([UNSTATED if value is None else str(value) for value in values], dtype=np.str_)

    names = ("source", "platform", "interconnect", "kind", "in_place", "nccl_version", "dtype")
    columns: dict[str, Any] = {name: text(name) for name in names}
    return MeasuredRows(
        **columns, ranks=np.full(n, ranks, dtype=np.int64), nodes=np.full(n, nodes, dtype=np.int64),
        bytes=np.array(bytes_, dtype=np.float64), time_us=np.array(time_us, dtype=np.float64),
    )  # fmt: skip


def _element_bytes(dtypes: Sequence[str]) -> FloatArray:
    return np.array([2.0 if dtype == "half" else 1.0 for dtype in dtypes])
