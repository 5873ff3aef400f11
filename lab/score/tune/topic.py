"""``python -m lab score tune``: regret of picks among configurations that were really run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import msgspec

from lab.datasets.folder import data_folder
from lab.datasets.llm.files import cases, file_of
from lab.datasets.llm.layouts import A100_LAYOUTS, H100_SWEEP
from lab.score.frame import show
from lab.score.tune.regret import FileRegret, candidate, file_regret
from stepsight.score import FIT, Figure, Score
from stepsight.validate.scoreboard import plain

TOPIC = "tune"
FILES = (H100_SWEEP, A100_LAYOUTS)
MEAN_BAR, TOP_BAR, CRASHED_BAR = 0.05, 0.03, 0.03


def regrets(data: Path) -> list[FileRegret]:
    """Every file that is there."""
    found = []
    for name in FILES:
        rows = cases(file_of(name), data)
        if not rows:
            continue
        asked = [candidate(case, asked=True) for case in rows]
        usual = [c for c in asked if not c.case.slow]
        regret = replace(file_regret(name, usual), slow_runs=len(asked) - len(usual))
        if regret.slow_runs:
            regret = replace(regret, with_slow_runs=file_regret(name, asked))
        if any(case.site for case in rows):
            measured = [candidate(case) for case in rows if not case.slow]
            regret = replace(regret, with_cluster=file_regret(name, measured))
        found.append(regret)
    return found


def scores(data: Path) -> list[Score]:
    """The lines of the scoreboard."""
    return [line for f in regrets(data) for line in lines_of(f)]


def lines_of(f: FileRegret) -> list[Score]:
    """A line for each bar: the mean regret, that of the best of three, and picks that crash."""
    worst = f"worst group {f.worst.regret:.1%}" if f.worst else ""
    parts = (
        (f.file, "mean regret", f.mean_regret, MEAN_BAR, worst),
        (f"{f.file}, best of three", "mean regret", f.top3_regret, TOP_BAR, ""),
        (f"{f.file}, picks that crash", "of all groups", f.crashed_picks, CRASHED_BAR, ""),
    )
    return [
        Score.reading(
            TOPIC, name, f.groups, Figure(what, value), "groups", bar=bar, note=note, exposure=FIT
        )
        for name, what, value, bar, note in parts
    ]  # fmt: skip


@click.command(TOPIC)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--each", is_flag=True, help="Groups one by one; --json always lists them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, each: bool, as_json: bool) -> None:
    """Regret of tune's picks against the fastest measured configuration, and how many picks crashed."""
    found = [(f, lines_of(f)) for f in regrets(data_folder(data))]
    figures = {f.file: {**msgspec.to_builtins(f), "scores": plain(own)} for f, own in found}
    show([line for _, own in found for line in own], figures, as_json=as_json)
    if each and not as_json:
        for g in (g for f, _ in found for g in f.each):
            click.echo(f"{g.group}: pick {g.pick_ms:.0f} ms, best {g.best_ms:.0f} ms, regret {g.regret:.1%}")
