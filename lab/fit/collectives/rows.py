"""Rows of collective measurements as columns, from the tables that the catalogue is fitted on.

Needs pyarrow (extra ``fit``); nothing that predicts imports this module.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
    return MeasuredRows(
        source=_text(table["source"]),
        platform=_text(table["platform"]),
        interconnect=_text(table["interconnect"]),
        kind=_text(kinds),
        in_place=_text(table["in_place"]),
        nccl_version=_text(table["nccl_version"]),
        dtype=_text(table["dtype"]),
        ranks=np.array(table["n_gpus"], dtype=np.int64),
        nodes=np.array(table["n_nodes"], dtype=np.int64),
        bytes=np.array(table["bytes"], dtype=np.float64),
        time_us=np.array(table["time_us"], dtype=np.float64),
    )


def read_aiconfigurator(system: str, dtypes: Sequence[str] = ("half",)) -> MeasuredRows:
    """A system's NCCL tables of aiconfigurator-core: latency in ms, message sizes in elements.

    By default only half precision: NCCL sums int8 by other algorithms than those training uses.
    """
    import pyarrow.parquet

    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("aiconfigurator-core", "not installed", "pip install aiconfigurator-core to refit")
    root = Path(spec.submodule_search_locations[0]) / "systems" / "data" / system / "comm" / "nccl"
    parts = []
    for path in sorted(root.glob("*/nccl_perf.parquet")):
        table = pyarrow.parquet.read_table(path).to_pydict()
        n = len(table["latency"])
        rows = MeasuredRows(
            source=_text(["aiconfigurator"] * n),
            platform=_text([system] * n),
            interconnect=_text([UNSTATED] * n),
            kind=_text([KIND_NAMES.get(kind, kind) for kind in table["op_name"]]),
            in_place=_text([UNSTATED] * n),
            nccl_version=_text([path.parent.name] * n),
            dtype=_text(table["nccl_dtype"]),
            ranks=np.array(table["num_gpus"], dtype=np.int64),
            nodes=np.ones(n, dtype=np.int64),
            bytes=_element_bytes(table["nccl_dtype"]) * np.array(table["message_size"], dtype=np.float64),
            time_us=1e3 * np.array(table["latency"], dtype=np.float64),
        )
        parts.append(rows.where(np.isin(rows.dtype, list(dtypes))))
    if not parts:
        raise InputError(str(root), "no NCCL tables of this system", "check aiconfigurator-core's version")
    return MeasuredRows.concatenate(parts)


def read_paper(path: Path) -> MeasuredRows:
    """Times read off a published plot of 4×V100: the latency series."""
    import pyarrow.csv

    table = pyarrow.csv.read_csv(path).to_pydict()
    kept = [i for i, quantity in enumerate(table["quantity"]) if quantity == "latency_us"]
    n = len(kept)
    return MeasuredRows(
        source=_text(["paper_4xV100"] * n),
        platform=_text(["4xV100 (published plot)"] * n),
        interconnect=_text([UNSTATED] * n),
        kind=_text([table["collective"][i] for i in kept]),
        in_place=_text([UNSTATED] * n),
        nccl_version=_text([UNSTATED] * n),
        dtype=_text([UNSTATED] * n),
        ranks=np.full(n, 4, dtype=np.int64),
        nodes=np.ones(n, dtype=np.int64),
        bytes=2.0 ** np.array([table["log2_bytes"][i] for i in kept], dtype=np.float64),
        time_us=np.array([table["value"][i] for i in kept], dtype=np.float64),
    )


def _element_bytes(dtypes: Sequence[str]) -> FloatArray:
    return np.array([2.0 if dtype == "half" else 1.0 for dtype in dtypes])


def _text(values: Sequence[Any]) -> TextArray:
    return np.array([UNSTATED if value is None else str(value) for value in values], dtype=np.str_)
