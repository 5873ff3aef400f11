"""``python -m lab gate``: fails when a score of the scorecard got worse by more than its noise.

A score is worse when its GMAE rises by more than 5 % of itself plus 0.2 points. Where a line has no errors of
times its figure is compared, and of a share that should be high what is missing from one; the share of rows
inside an interval is not compared.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from lab.score.results import load_results
from stepsight.score import Score

REFERENCE = Path(__file__).resolve().parents[2] / "tests" / "data" / "accuracy.json"
SHARE, POINTS = 0.05, 0.002


def scores(folder: Path) -> dict[str, dict[str, float]]:
    """Every score of a folder of results, by topic and name."""
    found = {}
    for score in (score for result in load_results(folder, ()) for score in result.scores):
        error = error_of(score)
        if error is not None:
            found[f"{score.topic}: {score.name}"] = {"gmae": round(error, 5), "rows": score.rows}
    return found


def error_of(score: Score) -> float | None:
    """What must not rise; None where a line has nothing of the kind."""
    if score.gmae is not None or score.figure is None:
        return score.gmae
    return {"less": score.figure.value, "more": 1 - score.figure.value, "": None}[score.figure.better]


@click.command("gate")
@click.option("--results", type=click.Path(path_type=Path), default=Path("validation"), show_default=True)
@click.option("--update", is_flag=True, help="Make the results the new reference.")
def command(results: Path, update: bool) -> None:
    """Compare saved results with tests/data/accuracy.json; exit code 1 where a score is worse."""
    now = scores(results)
    if not now:
        raise click.UsageError(f"{results} holds no results: run `python -m lab score all` first")
    known = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    if update:
        merged = json.dumps({**known, **now}, indent=1, sort_keys=True, ensure_ascii=False)
        REFERENCE.write_text(merged + "\n")
        click.echo(f"{len(now)} scores are the reference now")
        return
    compared = [name for name in now if name in known]
    worse = [n for n in compared if now[n]["gmae"] > known[n]["gmae"] * (1 + SHARE) + POINTS]
    for name in worse:
        before, after = known[name]["gmae"], now[name]["gmae"]
        click.echo(f"worse: {name}: GMAE {before:.2%} → {after:.2%} ({now[name]['rows']} rows)")
    click.echo(f"{len(compared)} scores compared, {len(worse)} worse, {len(now) - len(compared)} new")
    if worse:
        raise click.exceptions.Exit(1)
