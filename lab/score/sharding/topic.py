"""The choice of a sharding plan against what the plans really take.

``--live`` trains random tasks on this machine: each of the seven sharders' plans and the
searched one, predicted first. Without it the trials of earlier runs are summed up.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from lab.score.sharding.results import SEARCHED, Summary, Trial, read_trials, summarise, write_trials
from lab.score.sharding.trials import drawn_tasks, try_task
from stepsight.documents import to_json
from stepsight.errors import InputError
from stepsight.score import BLIND, Figure, Score
from stepsight.validate.scoreboard import end, plain, table

SUCCESS, REGRET, SEARCH_WINS = 0.85, 0.03, 0.90
"""The bars: METHOD §7 for success; mean regret and the searched plan as the project set them."""
"""No measured tables: trials come from ``--live`` or ``--results``."""


def scores() -> list[Score]:
    """No measured table of sharding plans exists: this topic is scored live."""
    return []


@click.command("sharding", help="The choice of a sharding plan.")
@click.option("--live", is_flag=True, help="Train random tasks here (needs torch and --platform).")
@click.option("--platform", "-p", "platform", help="The calibrated platform of this machine.")
@click.option("--ranks", default=2, show_default=True)
@click.option("--tasks", default=4, show_default=True, help="Tasks in this run.")
@click.option("--first", default=0, show_default=True, help="Seed of the first task.")
@click.option("--rounds", default=3, show_default=True, help="Each builds the models anew.")
@click.option("--blocks", default=6, show_default=True, help="Interleaved blocks per round.")
@click.option("--steps", default=4, show_default=True, help="Timed steps per block.")
@click.option("--results", type=click.Path(path_type=Path), help="Trials are kept here, run after run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    live: bool, platform: str | None, ranks: int, tasks: int, first: int, rounds: int, blocks: int,
    steps: int, results: Path | None, as_json: bool,
) -> None:  # fmt: skip
    trials = read_trials(results) if results else []
    if live:
        if not platform:
            raise click.UsageError("--live needs --platform: the folder that `stepsight calibrate` wrote")
        trials += _run(platform, ranks, tasks, first, (rounds, blocks, steps), results, trials)
    if not trials:
        raise InputError(
            "sharding", "there are no trials yet", "use --live, or --results with a file of trials"
        )
    show(trials, as_json=as_json)


def _run(
    name: str, ranks: int, tasks: int, first: int, effort: tuple[int, int, int], results: Path | None,
    before: Sequence[Trial],
) -> list[Trial]:  # fmt: skip
    from stepsight.platform.load import load_platform
    from stepsight.run.ranks import Ranks

    platform = load_platform(name)
    rounds, blocks, steps = effort
    made: list[Trial] = []
    with Ranks(ranks, "cpu" if platform.spec.host.synchronous else "cuda") as group:
        for seed, task, pricer in drawn_tasks(platform, ranks, first, tasks):
            if any(trial.seed == seed for trial in before):
                continue
            made.append(try_task(group, task, seed, pricer, rounds=rounds, blocks=blocks, steps=steps))
            click.echo(_line(made[-1]), err=True)
            if results:
                write_trials(results, [*before, *made])
    return made


def bars(s: Summary) -> list[Score]:
    """A line for each bar, over the tasks whose sharders differ; each plan was predicted, then trained."""
    parts = (
        ("pick within 10 % of the best", Figure("of all tasks", s.within_10, "more"), SUCCESS),
        ("regret of the pick", Figure("mean regret", s.mean_regret), REGRET),
        (
            "searched plan as fast as the best sharder",
            Figure("of all tasks", s.search_level, "more"),
            SEARCH_WINS,
        ),
    )
    return [
        Score.reading(
            "sharding", name, s.tasks, figure, "tasks whose sharders differ", bar=bar, exposure=BLIND
        )
        for name, figure, bar in parts
    ]  # fmt: skip


def show(trials: Sequence[Trial], *, as_json: bool) -> None:
    """The figures, and each task behind them; a missed bar ends the command with code 1."""
    s = summarise(trials)
    lines = bars(s)
    if as_json:
        rows = [
            {
                "task": t.task, "spread": t.spread, "pick": t.pick, "best": t.best, "regret": t.regret,
                "search": t.against_best(SEARCHED),
                "predicted_us": {n: p.predicted_us for n, p in t.plans.items()},
                "measured_us": t.measured_us,
            }
            for t in trials
        ]  # fmt: skip
        click.echo(to_json({**msgspec.structs.asdict(s), "trials": rows, "scores": plain(lines)}))
    else:
        for trial in trials:
            click.echo(_line(trial))
        click.echo(
            f"{s.tasks} tasks whose sharders differ ({s.level} more within 5 %, counted apart); repeat noise "
            f"of a plan {s.repeat_noise:.1%}, of a comparison {s.pair_noise:.1%}\n"
            f"pick within 5 % of the best: {s.within_5:.0%}; the very best: {s.best:.0%}; mean regret "
            f"{s.mean_regret:.1%}, worst {s.worst_regret:.1%}; a blind pick: {s.random_regret:.1%}\n"
            f"searched plan on average {s.mean_search:+.1%}, judged by a round that did not choose the best"
        )
        table(lines)
    end(lines)


def _line(t: Trial) -> str:
    return (
        f"{t.task}: {t.tables} tables, pick {t.pick}, best {t.best}, regret {t.regret:.1%}, "
        f"{SEARCHED} {t.against_best(SEARCHED):+.1%}, spread {t.spread:.1%}, error {t.error:.1%}"
    )
