"""Measured lookups in a file: what was looked up, and how long every call took in every repeat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepsight.calibrate.lookups.microbench import LookupSample
from stepsight.documents import write_whole
from stepsight.errors import InputError
from stepsight.inputs import read_bytes
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.lookup import Lookup, TableLookup


class _Table(msgspec.Struct):
    rows: int
    dim: int
    batch: int
    pooling: float
    indices: Any
    dtype: str = "fp32"


class _Sample(msgspec.Struct):
    tables: list[_Table]
    times_us: list[list[list[list[float]]]]
    optimizer: str = "sgd"
    operator: str = ""


class _File(msgspec.Struct):
    caches: list[float]
    samples: list[_Sample]


def write_samples(path: Path, samples: Sequence[LookupSample], caches: Sequence[float]) -> None:
    """Write samples with the caches of the processor they were measured on."""
    records = [
        _Sample(
            [
                _Table(t.rows, t.dim, t.batch, t.pooling, t.indices.value, t.dtype)
                for t in sample.lookup.tables
            ],
            np.round(sample.times_us, 2).tolist(),
            sample.lookup.optimizer,
            sample.lookup.operator,
        )
        for sample in samples
    ]
    write_whole(path, msgspec.json.encode(_File(list(caches), records)))


def read_samples(path: Path) -> tuple[list[LookupSample], tuple[float, ...]]:
    """Samples and caches of a file that `write_samples` wrote."""
    content = read_bytes(path, "measure some first")
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), f"not a file of measured lookups ({error})", "measure again") from None
    samples = []
    for number, record in enumerate(file.samples):
        where = f"{path}: samples[{number}]"
        tables = tuple(
            TableLookup(t.rows, t.dim, t.batch, t.pooling, IndexDistribution.parse(t.indices, where), t.dtype)
            for t in record.tables
        )
        lookup = Lookup(tables, record.optimizer, operator=record.operator)
        samples.append(LookupSample(lookup, np.array(record.times_us)))
    return samples, tuple(file.caches)
