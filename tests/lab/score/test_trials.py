import json

import numpy as np
import pytest
from click.testing import CliRunner

from lab.score.sharding.results import PlanTrial, Trial, read_trials, summarise, write_trials
from lab.score.sharding.topic import command
from stepsight.errors import InputError


def trial(seed: int, measured: dict[str, float], predicted: dict[str, float]) -> Trial:
    plans = {name: PlanTrial(predicted[name], [[[us, us]] * 2] * 4) for name, us in measured.items()}
    return Trial(f"task-{seed}", seed, 8, 512, plans)


RIGHT = trial(0, {"a": 100, "b": 120, "search": 95}, {"a": 90, "b": 110, "search": 85})
WRONG = trial(1, {"a": 108, "b": 100, "search": 101}, {"a": 90, "b": 110, "search": 85})
LEVEL = trial(2, {"a": 100, "b": 101, "search": 100}, {"a": 90, "b": 80, "search": 85})


def test_a_trial_knows_its_pick_and_what_it_cost():
    assert (RIGHT.pick, RIGHT.best, RIGHT.regret) == ("a", "a", 0)
    assert (WRONG.pick, WRONG.best) == ("a", "b")
    assert WRONG.regret == pytest.approx(0.08)
    assert RIGHT.against_best("search") == pytest.approx(-0.05)


def test_level_tasks_are_counted_apart():
    summary = summarise([RIGHT, WRONG, LEVEL])
    assert (summary.tasks, summary.level) == (2, 1)
    assert (summary.best, summary.within_5, summary.within_10) == (0.5, 0.5, 1.0)
    assert summary.mean_regret == pytest.approx(0.04)
    assert summary.search_level == 0.5


def test_rounds_that_differ_from_the_other_plans_are_the_noise():
    plans = {"a": [100, 110, 100, 110], "b": [150, 150, 150, 150], "search": [100, 110, 100, 110]}
    noisy = Trial("n", 3, 8, 512, {n: PlanTrial(1, [[[us]] for us in x]) for n, x in plans.items()})
    each = np.log(1.1) / 2 / np.sqrt(3) * np.array([1 / 3, 2 / 3, 1 / 3])  # of three plans two move
    assert summarise([noisy]).repeat_noise == pytest.approx(each.mean())


def test_a_slow_minute_is_no_noise():
    """All plans are slower together in the third round: nothing is stated about any of them."""
    steady = {
        name: PlanTrial(us, [[[us]], [[us]], [[1.3 * us]]])
        for name, us in {"a": 100, "b": 120, "search": 95}.items()
    }
    trial = Trial("m", 5, 8, 512, steady)
    assert summarise([trial]).repeat_noise == pytest.approx(0, abs=1e-12)
    assert trial.measured_us == pytest.approx({"a": 100, "b": 120, "search": 95})


def test_the_best_sharder_is_judged_by_a_round_that_did_not_choose_it():
    """Each of two equal sharders has one lucky round; judged by the others neither beats the search."""
    plans = {"a": [90, 100, 100], "b": [100, 90, 100], "search": [100, 100, 100]}
    lucky = Trial("l", 6, 8, 512, {n: PlanTrial(1, [[[us]] for us in x]) for n, x in plans.items()})
    assert lucky.against_best("search") <= 0


def test_trials_are_kept_between_runs(tmp_path):
    path = tmp_path / "trials.json"
    assert read_trials(path) == []
    write_trials(path, [RIGHT, WRONG])
    assert read_trials(path) == [RIGHT, WRONG]
    path.write_text("[1]")
    with pytest.raises(InputError, match=r"trials.json"):
        read_trials(path)


def test_the_command_sums_up_what_was_kept(tmp_path):
    path = tmp_path / "trials.json"
    write_trials(path, [RIGHT, WRONG, LEVEL])
    shown = CliRunner().invoke(command, ["--results", str(path)])
    assert shown.exit_code == 1, shown.output  # the mean regret is above its bar
    assert "mean regret 4.0%" in shown.output
    data = json.loads(CliRunner().invoke(command, ["--results", str(path), "--json"]).stdout)
    assert data["tasks"] == 2
    assert len(data["trials"]) == 3


def test_without_trials_the_command_says_what_to_do():
    result = CliRunner().invoke(command, [])
    assert isinstance(result.exception, InputError)
    assert "--live" in str(result.exception)
