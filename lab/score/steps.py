"""Measured steps next to predicted ones: the rows that the end-to-end scores are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click
import msgspec

from stepsight.documents import to_json
from stepsight.errors import StepsightError
from stepsight.prediction.answer import Prediction
from stepsight.score import CHOSEN, Score, gmae, mape
from stepsight.terminal import listing, terminal

NAIVE = "naive sum of kernels"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One measured step and what was predicted for it, in ms; ``others`` are other predictors'.

    ``set`` names the collection that the row is scored with.
    """

    name: str
    measured_ms: float
    predicted_ms: float
    naive_ms: float
    low_ms: float = 0.0
    high_ms: float = 0.0
    others: tuple[tuple[str, float], ...] = ()
    set: str = ""

    @classmethod
    def of(
        cls, name: str, measured_ms: float, found: Prediction, set: str,
        others: tuple[tuple[str, float], ...] = (),
    ) -> StepRow:  # fmt: skip
        """A measured step and its prediction."""
        low_ms, high_ms = found.low_us / 1e3, found.high_us / 1e3
        return cls(
            name, measured_ms, found.step_time_us / 1e3, found.naive_us / 1e3, low_ms, high_ms, others, set
        )

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        return self.low_ms <= self.measured_ms <= self.high_ms


def score(
    topic: str, name: str, rows: Sequence[StepRow], used: str, target: float | None = None,
    *, exposure: str = CHOSEN,
) -> list[Score]:  # fmt: skip
    """Our score, the naive baseline's, and other predictors' on the rows they have.

    No step is fitted on itself, but steps were in sight while settings were chosen, unless ``exposure`` says
    otherwise.
    """
    if not rows:
        return []
    measured = [r.measured_ms for r in rows]
    inside = sum(r.inside for r in rows)
    note = (
        f"worst {max(rows, key=lambda r: abs(r.error)).error:+.1%}; {inside}/{len(rows)} inside the interval"
    )
    scores = [
        Score.of(
            topic, name, [r.predicted_ms for r in rows], measured, used, gmae_target=target, note=note,
            exposure=exposure,
        ),
        Score.of(
            topic, f"{name}: {NAIVE}", [r.naive_ms for r in rows], measured, used, exposure=exposure,
            predictor=NAIVE, same_rows_as=name,
        ),
    ]  # fmt: skip
    for other in dict.fromkeys(name for r in rows for name, _ in r.others):
        have = [(dict(r.others)[other], r.measured_ms) for r in rows if other in dict(r.others)]
        values = [p for p, _ in have], [m for _, m in have]
        scores.append(
            Score.of(
                topic, f"{name}: {other}", *values, f"{used}, where it has a value", exposure=exposure,
                predictor=other, same_rows_as=name,
            )
        )  # fmt: skip
    return scores


def each(
    rows: Iterable[dict[str, str]], predict: Callable[[dict[str, str]], StepRow | None]
) -> list[StepRow]:
    """The rows that can be predicted; ``predict`` answers None for what the tool has no model of. Rows that
    it refuses are counted on stderr."""
    found: list[StepRow] = []
    refused: dict[str, int] = {}
    for row in rows:
        try:
            made = predict(row)
        except (StepsightError, ValueError, KeyError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            refused[reason] = refused.get(reason, 0) + 1
            continue
        found += [made] if made is not None else []
    for reason, count in refused.items():
        click.echo(f"not expressed: {count} × {reason}", err=True)
    return found


def summary(rows: Sequence[StepRow]) -> dict[str, float]:
    """Rows, errors and the share inside the interval."""
    measured, predicted = [r.measured_ms for r in rows], [r.predicted_ms for r in rows]
    return {
        "rows": len(rows), "mape": mape(predicted, measured), "gmae": gmae(predicted, measured),
        "inside": sum(r.inside for r in rows) / len(rows),
    }  # fmt: skip


def show_rows(rows: Sequence[StepRow], *, as_json: bool) -> None:
    """Every measured step next to its prediction, the naive baseline and other predictors."""
    if as_json:
        click.echo(to_json([{**msgspec.to_builtins(row), "error": row.error} for row in rows]))
        return
    shown = [
        (r.set, r.name, f"{r.measured_ms:.2f} ms", f"{r.predicted_ms:.2f} ms", f"{r.error:+.1%}",
         "inside" if r.inside else "outside", f"{r.naive_ms / r.measured_ms - 1:+.0%}",
         ", ".join(f"{name} {ms / r.measured_ms - 1:+.0%}" for name, ms in r.others))
        for r in rows
    ]  # fmt: skip
    titles = ("set", "step", "measured", "predicted", "error", "interval", "naive", "others")
    terminal().print(listing(titles, shown, left=("step", "others")))
