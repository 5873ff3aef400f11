"""Predicted and measured steps of random workloads: the rows of the live table, kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from stepsight.calibrate.fit import step_us
from stepsight.calibrate.journal import Journal
from stepsight.calibrate.rehearsal import (
    FAMILIES,
    VALIDATION,
    Document,
    random_dlrm,
    random_torchrec,
    random_transformer,
    skewed_dlrms,
)  # fmt: skip
from stepsight.platform.load import Platform
from stepsight.prediction.predict import predict
from stepsight.workload.dlrm.config import EAGER, TORCHREC_STACK
from stepsight.workload.files import parse_workload
from stepsight.workload.llm.eager.build import MODELS

Item = TypeVar("Item")
PREDICTED, MEASURED = "predicted", "measured"
TOGETHER = 6
"""Workloads whose blocks of steps are interleaved."""
PASSES = 2
"""Passes that measure every workload, each by fresh processes: their difference is the noise."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One workload: what was predicted before, and what every pass then measured, in µs."""

    name: str
    kind: str
    predicted_us: float
    naive_us: float
    measured_us: float
    passes_us: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_us / self.measured_us - 1

    @property
    def noise(self) -> float:
        """How far the first pass lies from the last: what repeating the measurement alone changes."""
        return abs(self.passes_us[0] / self.passes_us[-1] - 1)


def live_documents(
    ranks: int, dlrms: int, transformers: int, skew_sets: int, seed: int, stack: str = EAGER
) -> list[Document]:
    """The workloads to score on; none took part in any calibration."""
    known = [family for family in FAMILIES if family in MODELS]
    first = 1000 * seed
    if stack == TORCHREC_STACK:
        return [random_torchrec(ranks, first + i, VALIDATION) for i in range(dlrms)]
    documents = [random_dlrm(ranks, first + i, VALIDATION) for i in range(dlrms)]
    documents += [
        random_transformer(ranks, first + i, VALIDATION, known[i % len(known)]) for i in range(transformers)
    ]
    for i in range(skew_sets):
        documents += skewed_dlrms(ranks, first + i)
    return documents


def kind_of(document: Document) -> str:
    if document["name"].startswith("skew-"):
        return "skew"
    if document["name"].startswith("torchrec-"):
        return "TorchRec"
    return "DLRM" if document["kind"] == "dlrm" else "NLP"


def predict_all(documents: Sequence[Document], platform: Platform, journal: Journal) -> None:
    """Predictions first, on disk before anything is measured."""
    done = {s["name"] for s in journal.of(PREDICTED)}
    for document in documents:
        if document["name"] in done:
            continue
        prediction = predict(parse_workload(dict(document), document["name"]), platform)
        record = {"name": document["name"], "kind": kind_of(document), "document": document,
                  "predicted_us": prediction.step_us, "naive_us": prediction.naive_us}  # fmt: skip
        journal.add(PREDICTED, [record])


def pending(journal: Journal, documents: Sequence[Document]) -> Iterator[tuple[int, list[Document]]]:
    """What is still to be measured: groups of different kinds of workloads, pass after pass."""
    groups = grouped(documents)
    done = {(s["name"], s["pass"]) for s in journal.of(MEASURED)}
    for number in range(PASSES):
        for group in groups:
            missing = [d for d in group if (d["name"], number) not in done]
            if missing:
                yield number, missing


def grouped(items: Sequence[Item]) -> list[list[Item]]:
    """Items in the groups that are measured together, different kinds in each."""
    count = -(-len(items) // TOGETHER)
    return [list(items[i::count]) for i in range(count)]


def measure_group(
    start: Callable[[], Any],
    number: int,
    documents: Sequence[Document],
    journal: Journal,
    steps: int,
    blocks: int,
) -> None:
    """Train one group with fresh ranks and keep its steps."""
    from stepsight.run.measure import measure_all

    workloads = [parse_workload(dict(d), d["name"]) for d in documents]
    with start() as ranks:
        measured = measure_all(ranks, workloads, steps=steps, blocks=blocks)
    journal.add(
        MEASURED,
        [{"name": m.name, "pass": number, "steps_us": m.job_us.round(1).tolist()} for m in measured],
    )


def rows_of(journal: Journal) -> list[LiveRow]:
    """Every workload that was predicted and then measured in all passes."""
    measured: dict[str, list[Any]] = {}
    for sample in sorted(journal.of(MEASURED), key=lambda s: s["pass"]):
        measured.setdefault(sample["name"], []).append(sample["steps_us"])
    return [
        LiveRow(
            p["name"], p["kind"], p["predicted_us"], p["naive_us"],
            step_us([block for blocks in measured[p["name"]] for block in blocks]),
            tuple(map(step_us, measured[p["name"]])),
        )
        for p in journal.of(PREDICTED)
        if len(measured.get(p["name"], ())) == PASSES
    ]  # fmt: skip


def skew_correlations(rows: Sequence[LiveRow]) -> dict[str, float]:
    """Correlation of ln(predicted) and ln(measured) over index skews: per set of tables, and over all
    sets together with each set's mean taken out."""
    sets: dict[str, list[LiveRow]] = {}
    for row in rows:
        if row.kind == "skew":
            sets.setdefault(row.name.rpartition("-zipf-")[0], []).append(row)
    found, parts = {}, []
    for name, members in sets.items():
        if len(members) > 2:
            logs = np.log([[r.predicted_us for r in members], [r.measured_us for r in members]])
            parts.append(logs - logs.mean(axis=1, keepdims=True))
            found[name] = float(np.corrcoef(logs)[0, 1])
    if len(parts) > 1:
        found["all sets"] = float(np.corrcoef(np.concatenate(parts, axis=1))[0, 1])
    return found


def as_dict(row: LiveRow) -> dict[str, Any]:
    return {
        "name": row.name, "kind": row.kind, "predicted_us": row.predicted_us, "measured_us": row.measured_us,
        "error": row.error, "noise": row.noise, "naive_us": row.naive_us, "passes_us": list(row.passes_us),
    }  # fmt: skip
