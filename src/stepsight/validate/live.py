"""``stepsight validate live``: random models, predicted first and then really trained here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from stepsight.calibrate.draws import VALIDATION, Document, random_documents
from stepsight.calibrate.journal import Journal, step_us
from stepsight.platform.load import Platform
from stepsight.prediction.predict import predict
from stepsight.score import BLIND, Score, gmae
from stepsight.terminal import listing, terminal
from stepsight.validate.scoreboard import end, plain, table
from stepsight.workload.files import parse_workload

DLRM_BAR, NLP_BAR = 0.0521, 0.0300
"""METHOD §7 for DLRM and NLP."""
PREDICTED, MEASURED = "predicted", "measured"
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


def drawn(ranks: int, configs: int, nlp: int, stack: str, seed: int) -> list[Document]:
    """Random workloads; another seed, others."""
    return random_documents(ranks, configs, nlp, stack, VALIDATION, 1000 * seed)


def kind_of(document: Document) -> str:
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
                  "predicted_us": prediction.step_time_us, "naive_us": prediction.naive_us}  # fmt: skip
        journal.add(PREDICTED, [record])


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


def scores(rows: Sequence[LiveRow]) -> list[Score]:
    """One line per kind; the bar is the published figure or the repeat noise, whichever is larger."""
    lines = []
    for kind, bar in (("DLRM", DLRM_BAR), ("NLP", NLP_BAR), ("TorchRec", DLRM_BAR)):
        of_kind = [r for r in rows if r.kind == kind]
        if not of_kind:
            continue
        measured = [r.measured_us for r in of_kind]
        noise = gmae([r.passes_us[0] for r in of_kind], [r.passes_us[-1] for r in of_kind])
        naive = gmae([r.naive_us for r in of_kind], measured)
        worst = max(of_kind, key=lambda r: abs(r.error))
        lines.append(
            Score.of(
                "live", kind, [r.predicted_us for r in of_kind], measured, "random, none calibrated on",
                gmae_target=max(bar, noise), exposure=BLIND,
                note=f"noise {noise:.2%}, naive {naive:.1%}, worst {worst.error:+.1%} ({worst.name})",
            )
        )  # fmt: skip
    return lines


def report(rows: Sequence[LiveRow], platform: str, *, as_json: bool) -> None:
    """The rows and their scores; a missed bar is exit code 1."""
    lines = scores(rows)
    if as_json:
        from stepsight.documents import to_json

        each = [msgspec.to_builtins(r) | {"error": r.error, "noise": r.noise} for r in rows]
        click.echo(to_json({"platform": platform, "rows": each, "scores": plain(lines)}))
    else:
        shown = [
            (r.name, f"{r.predicted_us / 1e3:.2f}", f"{r.measured_us / 1e3:.2f}", f"{r.error:+.1%}",
             f"{r.noise:.1%}", f"{r.naive_us / 1e3:.2f}")
            for r in rows
        ]  # fmt: skip
        titles = ("workload", "predicted ms", "measured ms", "error", "noise", "naive ms")
        terminal().print(listing(titles, shown, title=f"predicted, then measured on {platform}"))
        table(lines)
    end(lines)
