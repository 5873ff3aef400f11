"""How large an input may be: far above real workloads, traces and tables, far below what a broken file asks.

Each limit can be raised for one command by an environment variable: ``STEPSIGHT_LIMIT_<NAME>=value``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from stepsight.errors import InputError

PREFIX = "STEPSIGHT_LIMIT_"
LIMITS: Mapping[str, int] = {
    "TEXT_BYTES": 1 << 28,  # a CSV, JSON or TOML file, the output of a benchmark, a captured step
    "EXPANDED_BYTES": 8 << 30,  # a trace or index file, and what a gzip, tar, zip, npz or parquet unpacks to
    "EXPANSION": 1000,  # how many times larger than the packed file; real traces reach about 60
    "EVENTS": 50_000_000,  # events of one trace
    "CELLS": 500_000_000,  # rows times columns of a parquet table
    "RANKS": 1 << 20,
    "LAYERS": 20_000,
    "TABLES": 200_000,
    "SIZE": 10**12,  # a batch, a dimension, a count of rows
}


def limit(name: str) -> int:
    """The limit of that name, as shipped or as the environment says."""
    given = os.environ.get(PREFIX + name)
    if given is None:
        return LIMITS[name]
    try:
        value = int(float(given))
    except (ValueError, OverflowError):
        raise InputError(f"{PREFIX}{name}={given}", "is not a number", "give a whole number") from None
    if value < 1:
        raise InputError(f"{PREFIX}{name}={given}", "must be above zero", "give a whole number")
    return value


def check(value: float, name: str, where: str, what: str) -> None:
    """Refuse a value above its limit, naming the way to raise it."""
    most = limit(name)
    if value > most:
        shown = f"{value:,.0f}" if value < 10**30 else "larger than 10^30"
        raise InputError(
            where, f"{what} is {shown}; at most {most:,}",
            f"correct it, or set {PREFIX}{name} higher",
        )  # fmt: skip
