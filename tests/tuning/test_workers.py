"""The same rows in the same order, whoever evaluates them."""

import os
from pathlib import Path

import pytest

from stepsight.errors import InputError
from stepsight.tuning import workers
from stepsight.tuning.api import sweep
from stepsight.tuning.evaluate import evaluate
from stepsight.tuning.trial import FAILED, Journal, Row, Trial

from .model import DLRM

OVER = ["batch=1024,2048,4096", "parallel.sharding=chunks,size_lookup_greedy"]
PLATFORM = "4xV100-SXM2"


@pytest.fixture(scope="module")
def rows():
    return sweep(DLRM, PLATFORM, over=OVER)


def test_processes_give_the_same_rows(rows):
    assert sweep(DLRM, PLATFORM, over=OVER, workers=2) == rows


def dies_once(document, trial, where):
    flag = Path(os.environ["STEPSIGHT_TEST_FLAG"])
    if trial.settings["batch"] == 2048 and not flag.exists():
        flag.touch()
        os._exit(1)
    return evaluate(document, trial, where)


def always_dies(document, trial, where):
    if trial.settings["batch"] == 2048:
        os._exit(1)
    return evaluate(document, trial, where)


def test_a_trial_whose_worker_dies_is_run_again(rows, monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSIGHT_TEST_FLAG", str(tmp_path / "died"))
    monkeypatch.setattr(workers, "evaluate", dies_once)
    assert sweep(DLRM, PLATFORM, over=OVER, workers=2) == rows


def test_a_worker_that_dies_with_tasks_in_its_queue_loses_none(monkeypatch):
    monkeypatch.setattr(workers, "evaluate", always_dies)
    found = sweep(DLRM, PLATFORM, over=["batch=" + ",".join(["2048", "1024"] * 20)], workers=2)
    assert [r.status == FAILED for r in found] == [True, False] * 20


def test_a_trial_that_kills_its_worker_twice_is_reported(rows, monkeypatch):
    monkeypatch.setattr(workers, "evaluate", always_dies)
    found = sweep(DLRM, PLATFORM, over=OVER, workers=2)
    assert [r.status == FAILED for r in found] == [r.settings["batch"] == 2048 for r in rows]
    assert found[0] == rows[0] and "died" in found[2].reason


def test_workers_and_ray_exclude_each_other():
    with pytest.raises(InputError, match="--workers"):
        workers.workers_of(4, "auto")


def test_a_cluster_that_is_not_there():
    pytest.importorskip("ray", reason="ray is not installed; pip install ray")
    with pytest.raises(InputError, match="cannot be reached"):
        workers.workers_of(1, "127.0.0.1:1")


@pytest.fixture(scope="module")
def two_nodes():
    pytest.importorskip("ray", reason="ray is not installed; pip install ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


def test_two_ray_nodes_give_the_same_rows(rows, two_nodes):
    assert sweep(DLRM, PLATFORM, over=OVER, ray=two_nodes) == rows


@pytest.mark.parametrize("always", [False, True])
def test_a_trial_whose_ray_worker_dies_is_run_again_once(rows, two_nodes, monkeypatch, tmp_path, always):
    flag = str(tmp_path / "died")

    class Dies(workers.Evaluator):
        def some(self, document, trials, where):
            import pathlib

            if any(t.settings["batch"] == 2048 for t in trials) and not pathlib.Path(flag).exists():
                if not always:
                    pathlib.Path(flag).touch()
                os._exit(1)
            return super().some(document, trials, where)

    monkeypatch.setattr(workers, "Evaluator", Dies)
    found = sweep(DLRM, PLATFORM, over=OVER, ray=two_nodes)
    assert [r.status == FAILED for r in found] == [always and r.settings["batch"] == 2048 for r in rows]
    assert found[0] == rows[0] and (always or found == rows)


def test_a_trial_is_known_by_what_matters(tmp_path):
    journal, other = (Journal(tmp_path / "t.jsonl", d) for d in (DLRM, {**DLRM, "batch": 1}))
    one = Trial({"batch": 1024}, PLATFORM)
    assert journal.key(one) == journal.key(Trial({"batch": 1024}, PLATFORM))
    assert journal.key(one) != journal.key(Trial({"batch": 2048}, PLATFORM))
    assert journal.key(one) != other.key(one)


def test_a_trial_whose_worker_died_is_asked_again_by_the_next_search(tmp_path):
    one = Trial({"batch": 1024}, PLATFORM)
    Journal(tmp_path / "t.jsonl", DLRM).add(one, Row(one.settings, PLATFORM, FAILED))
    assert Journal(tmp_path / "t.jsonl", DLRM).get(one) is None


def test_a_worker_stays_in_its_stretch_then_helps_where_most_is_left():
    left = workers.Stretches(200, 2)
    first, second = left.take(0), left.take(1)
    assert first.start == 0 and second.start == 100 and len(first) <= workers.MOST_TOGETHER
    mine = [i for chunk in iter(lambda: left.take(0), range(0)) for i in chunk]
    assert mine[: 100 - len(first)] == list(range(len(first), 100))
    assert sorted([*first, *second, *mine]) == list(range(200)) and not left


@pytest.mark.parametrize(("count", "processes"), [(0, 2), (1, 2), (3, 8), (7, 3)])
def test_every_trial_is_handed_out_once(count, processes):
    left = workers.Stretches(count, processes)
    taken = [i for worker in [*range(processes)] * (count + 1) for i in left.take(worker)]
    assert sorted(taken) == list(range(count)) and not left
