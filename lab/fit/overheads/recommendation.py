"""Host times of one class of workloads on one host: DLRMs in the published study of 2022.

The study's table of all workloads mixes CNNs, whose gaps between operators are half again as long, with
recommendation models. Here only DLRMs vote, each once, with the batch sizes whose outliers the study had
dropped (where the standard deviation is above the mean it had not). Without one of them, the others
predict it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from lab.fit.overheads.published import read_single
from stepsight.overheads.tables import OpStats, Overheads, Stat, stem

NAME = "recommendation"
MODELS = ("DLRM_default", "DLRM_MLPerf", "DLRM_DDP")
LAUNCH_US = 4.0
"""T4 as the study's own predictor fixes it; its profiler read 10.4 µs, most of it its own."""

_Cells = Mapping[str, list[float]]


def recommendation_sets(folder: Path, base: Overheads) -> dict[str, Overheads]:
    """The class by name, and the same without each of its models; T3 and T5 are those of ``base``."""
    return {
        NAME: _table(folder, base, ""),
        **{f"{NAME}-without-{model}": _table(folder, base, model) for model in MODELS},
    }


def _table(folder: Path, base: Overheads, without: str) -> Overheads:
    file = msgspec.json.decode((folder / "overheads_2022-02-14.json").read_bytes())
    inside: Mapping[str, _Cells] = file["dicts"][0]
    voters = [model for model in MODELS if model != without]
    gap = Stat.median(_votes(file["t1"], voters))
    known = {stem(name) for name in (*inside, *read_single(folder))}

    def mine(name: str, shared: OpStats) -> OpStats:
        votes = _votes(inside.get(name, {}), voters)
        return OpStats(
            gap, Stat.median(votes) if votes else shared.t2, shared.t3, Stat(LAUNCH_US), shared.t5,
            shared.whole,
        )  # fmt: skip

    ops = {name: mine(name, shared) for name, shared in base.ops.items() if stem(name) in known}
    classes = {name: mine("", shared) for name, shared in base.classes.items()}
    provenance = f"{', '.join(voters)} of the study of 2022 (V100 host); T3, T5: {base.provenance}"
    return Overheads(ops, classes, {call: Stat(LAUNCH_US) for call in base.launches}, provenance, NAME)


def _votes(cells: _Cells, models: list[str]) -> list[Stat]:
    """One vote a model: the middle of its batch sizes."""
    votes = []
    for model in models:
        batches = [
            Stat(mean, std, int(count))
            for key, (mean, std, count) in cells.items()
            if key.split("|")[0] == model and std < mean
        ]
        if batches:
            votes.append(Stat.median(batches))
    return votes
