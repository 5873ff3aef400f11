"""Sizes of the parallel axes, as a file gives them."""

from __future__ import annotations

from stepsight.workload.fields import Fields


def data_ranks(parallel: Fields, others: int, axes: str) -> int:
    """``data`` as given, or what is left of ``ranks`` after the other axes, named by ``axes``."""
    if not parallel.has("ranks"):
        return parallel.integer("data", 1)
    ranks = parallel.integer("ranks")
    if ranks % others:
        raise parallel.fail(
            "ranks", f"{ranks} ranks is not a multiple of {axes} = {others}", f"use a multiple of {others}"
        )
    data = ranks // others
    if parallel.integer("data", data) != data:
        raise parallel.fail(
            "data", f"data × {axes} is not the {ranks} of ranks", "give one of data and ranks"
        )
    return data
