"""TorchRec's DLRM really trained on two CPU ranks, and the program that describes it."""

import json
from itertools import groupby
from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="TorchRec is not installed (torchrec==1.8.0, fbgemm-gpu-cpu==1.8.0)")

from stepsight.calibrate.draws import random_torchrec
from stepsight.errors import StepsightError
from stepsight.run.measure import profile
from stepsight.run.ranks import Ranks
from stepsight.workload.files import parse_workload

ACCUMULATE = "AccumulateGrad"


def document(**training: object):
    return {
        "kind": "dlrm", "name": "small", "batch": 64,
        "dense": {"features": 16, "bottom": [32, 16], "top": [32, 1]},
        "tables": [{"count": 4, "rows": 500, "dim": 16, "pooling": {"mean": 3.0, "spread": 0.5}}],
        "training": {
            "optimizer": "adagrad", "sparse_optimizer": "rowwise_adagrad", "loss": "bce_logits",
            "stack": "torchrec", **training,
        },
        "parallel": {"ranks": 2},
    }  # fmt: skip


def outermost(path: Path, step: int = 1) -> list[str]:
    """The operators of one profiled step that no other operator called, in order."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
    steps = sorted((e for e in events if e["name"].startswith("ProfilerStep")), key=lambda e: e["ts"])
    first, last = steps[step]["ts"], steps[step]["ts"] + steps[step]["dur"]
    inside = [
        e for e in events
        if e.get("cat") == "cpu_op" and e["tid"] == steps[step]["tid"] and first <= e["ts"] < last
    ]  # fmt: skip
    names, end = [], 0.0
    for event in sorted(inside, key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= end - 1e-3:
            names.append(event["name"])
            end = event["ts"] + event["dur"]
    return names


def comparable(names: list[str]) -> list[str]:
    """Without what stands inside another operator in a profile and beside it in a program: exchanges that a
    backward node starts; and with one node for the gradients of all tables of a rank."""
    kept, backward = [], False
    for name in names:
        backward = backward or "Backward" in name
        if (
            name.startswith("Optimizer.zero_grad")
            or name == "aten::fill_"
            or (backward and name.startswith("c10d::"))
        ):
            continue
        kept.append(name.split(": ")[-1])
    return [name for name, run in groupby(kept) for _ in ([0] if name.endswith(ACCUMULATE) else run)]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as group:
        yield group


def test_the_program_is_what_torchrec_runs(ranks, tmp_path):
    """Input distribution, splits awaited, fused lookup and update, output distribution, DDP, optimizer."""
    workload = parse_workload(document(), "x")
    files = profile(ranks, workload, tmp_path)
    ran = comparable(outermost(next(f for f in files if f.name == "rank0.pt.trace.json")))
    said = comparable([op.name for op in workload.job("cpu").programs[0].ops])
    assert said == ran
    exchanges = [op.collective.name for op in workload.job("cpu").programs[0].ops if op.collective]
    assert exchanges == ["splits", "pooled", "lengths", "indices", "gradients", "bucket"]


def test_drawn_models_train(ranks):
    from stepsight.run.measure import measure_all

    documents = [random_torchrec(2, seed) for seed in (0, 1)]
    small = [{**d, "batch": 64, "tables": [{**t, "rows": 1000} for t in d["tables"]]} for d in documents]
    found = measure_all(ranks, [parse_workload(d, d["name"]) for d in small], steps=2, blocks=1, warmup=2)
    assert all(m.step_us > 0 for m in found)


@pytest.mark.parametrize("training", [{"loss": "bce"}, {"precision": "bf16"}, {"sparse_optimizer": "adam"}])
def test_what_cannot_be_run_is_refused(training):
    with pytest.raises(StepsightError, match="can be predicted, not run"), Ranks(2) as group:
        from stepsight.run.measure import measure_all

        measure_all(group, [parse_workload(document(**training), "x")], steps=1, blocks=1)
