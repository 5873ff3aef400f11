"""For one configuration, predict, tune, sweep and validate state the same step, MFU and verdict on memory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

from lab.datasets.llm.case import Case
from lab.score.llm.rows import outcome
from stepsight.cli import cli
from stepsight.platform.load import load_platform
from stepsight.prediction.memory import FITS, fits
from stepsight.prediction.predict import predict
from stepsight.tuning.api import sweep, tune
from stepsight.tuning.evaluate import evaluate, with_settings
from stepsight.tuning.trial import Trial
from stepsight.workload.dlrm.build import recorded_step
from stepsight.workload.files import load_workload, parse_workload
from stepsight.workload.files import resolve as on_all_gpus

from .model import DLRM, MODEL, PLATFORM

EXPERTS = {**MODEL, "family": "mixtral", "moe": {"experts": 8, "active": 2, "ffn": 2816}}
PLAIN = {k: v for k, v in MODEL.items() if k not in ("global_batch", "training", "parallel")} | {
    "family": "gpt2", "batch_per_rank": 2, "parallel": {"data": 4},
}  # fmt: skip
del PLAIN["kv_heads"]
CONFIGURATIONS: list[tuple[Mapping[str, Any], dict[str, Any]]] = [
    (MODEL, {}),
    (MODEL, {"parallel.zero": 1}),
    (MODEL, {"parallel.zero": 2, "training.framework": "torchtitan"}),
    (MODEL, {"parallel.zero": 3, "training.framework": "torchtitan", "training.recompute": "selective",
             "parallel.micro_batch": 2}),
    (MODEL, {"parallel.data": 2, "parallel.tensor": 4, "parallel.sequence_parallel": True}),
    (MODEL, {"parallel.data": 2, "parallel.pipeline": 4, "parallel.micro_batch": 1}),
    (MODEL, {"parallel.data": 2, "parallel.pipeline": 4, "parallel.micro_batch": 1,
             "parallel.virtual_stages": 2, "parallel.schedule": "interleaved"}),
    (MODEL, {"training.precision": "fp8"}),
    (MODEL, {"training.precision": "fp8", "sequence": 32768, "global_batch": 8}),
    (MODEL, {"training.precision": "tf32", "training.framework": "eager"}),
    (MODEL, {"training.adapters": True}),
    (EXPERTS, {"parallel.expert": 4}),
    (DLRM, {"batch": 8192}),
    (PLAIN, {}),
]  # fmt: skip
WHOLE = {**MODEL, "parallel": {**MODEL["parallel"], "micro_batch": MODEL["global_batch"] // 8}}
"""With a micro-batch stated, so that no other one is chosen where memory is short."""
NEARNESS = (0.7, 0.95, 0.999, 1.001, 1.03, 1.4)
"""Usable memory over what is needed: on both sides of the limit, far from it and near."""


@pytest.mark.parametrize(("document", "settings"), CONFIGURATIONS, ids=lambda x: str(x)[-60:])
def test_predict_and_tune_state_the_same(document: Mapping[str, Any], settings: dict[str, Any]) -> None:
    found = predict(with_settings(document, settings, "t"), PLATFORM)
    row = evaluate(document, Trial(settings, PLATFORM), "t")
    assert row.priced, row.reason
    assert (row.step_time_us, row.low_us, row.high_us) == pytest.approx(
        (found.step_time_us, found.low_us, found.high_us)
    )
    rates, memory = found.throughput, found.memory
    assert row.mfu == pytest.approx(rates.mfu)
    assert row.samples_per_s == pytest.approx(rates.samples_per_s)
    assert row.tokens_per_s == pytest.approx(rates.tokens_per_s or 0.0)
    assert memory is not None
    assert (row.memory_gb, row.usable_gb) == pytest.approx(
        (memory.total_bytes / 1e9, memory.usable_bytes / 1e9)
    )
    assert (row.fit, row.fits) == (pytest.approx(memory.fit_probability), memory.fits)
    exposed = sum(share for name, share in row.shares.items() if name.startswith("exposed"))
    whole = sum(found.breakdown_us.values())
    assert exposed == pytest.approx(found.breakdown_us.get("exposed_communication", 0.0) / whole, abs=0.001)


@pytest.mark.parametrize(("document", "settings"), CONFIGURATIONS, ids=lambda x: str(x)[-60:])
def test_one_document_has_one_mfu_and_one_verdict(
    document: Mapping[str, Any], settings: dict[str, Any]
) -> None:
    found = predict(with_settings(document, settings, "t"), PLATFORM).to_dict()
    if "language" in found:
        for name in ("mfu", "tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu"):
            assert found["language"][name] == pytest.approx(found["throughput"][name])
        assert found["language"]["fit_probability"] == pytest.approx(found["memory"]["fit_probability"])
    assert found["memory"]["fits"] == (found["memory"]["fit_probability"] >= FITS)
    assert found["memory"]["fits"] == (found["memory"]["excess_bytes"] == 0)


@pytest.mark.parametrize("nearness", NEARNESS)
@pytest.mark.parametrize("document", [WHOLE, DLRM, PLAIN], ids=["language", "dlrm", "taped"])
def test_every_command_has_the_same_verdict(document: Mapping[str, Any], nearness: float) -> None:
    needed = predict(document, PLATFORM).memory
    assert needed is not None
    share = needed.usable_bytes / load_platform(PLATFORM).spec.gpu.memory_gb
    memory_gb = f"gpu.memory_gb={nearness * needed.total_bytes / share}"
    platform = load_platform(PLATFORM, [memory_gb])
    found = predict(document, platform)
    assert found.fits is (nearness > 1)
    row = evaluate(document, Trial({}, PLATFORM, (memory_gb,)), "t")
    (swept,) = sweep(document, PLATFORM, over=["training.optimizer=adamw"], overrides=[memory_gb])[:1]
    assert row.fits is found.fits
    assert swept.fits is (predict(with_settings(document, swept.settings, "t"), platform).fits)
    assert fits(peak_bytes(document), platform.spec.gpu.usable_bytes) is found.fits
    if document is WHOLE:
        case = Case(dict(document), name="t", platform=PLATFORM, overrides=(memory_gb,))
        assert outcome(case).full.fits is found.fits


def test_must_fit_follows_the_probability() -> None:
    near = [
        "predict",
        "llama3-8b",
        "-p",
        "8xH100-SXM",
        "--set",
        "global_batch=16",
        "--set",
        "parallel.zero=3",
    ]
    for sequence in (4600, 5200):
        done = CliRunner().invoke(cli, [*near, "--set", f"sequence={sequence}", "--json", "--must-fit"])
        found = json.loads(done.stdout)
        assert (done.exit_code == 0) == (found["language"]["fit_probability"] >= FITS), done.output
        assert (done.exit_code == 0) == found["memory"]["fits"]


def test_what_the_allocator_gives_back_is_not_needed() -> None:
    settings = {
        "parallel.data": 2, "parallel.tensor": 4, "parallel.sequence_parallel": True, "parallel.zero": 1,
        "training.framework": "nanotron",
    }  # fmt: skip
    document = with_settings(MODEL, settings, "t")
    held = predict(document, PLATFORM).memory
    assert held is not None and "reclaimable" not in held.parts_bytes
    assert held.reclaimable_bytes > 0
    assert held.total_bytes == pytest.approx(peak_bytes(document))


def test_the_memory_of_a_dlrm_does_not_depend_on_what_was_asked_before() -> None:
    document = {**DLRM, "batch": 1024 * 7}
    before = parse_workload(document, "t").memory().ranks[0]
    recorded_step.cache_clear()
    workload = parse_workload(document, "t")
    workload.job()
    assert workload.memory().ranks[0] == before


def peak_bytes(document: Mapping[str, Any]) -> float:
    return on_all_gpus(parse_workload(document, "t"), 8).memory().peak_bytes


def test_the_printed_line_predicts_what_the_search_ranks_by() -> None:
    found = tune("tinyllama-1.1b", PLATFORM, global_batch=64, over=["tp=1,2", "mbs=1"], top=2)
    for row in found.top:
        words = shlex.split(found.predict_line(row))
        sets = [word for flag, word in pairwise(words) if flag == "--set"]
        assert predict(load_workload(words[2], sets), words[4]).step_time_us == pytest.approx(
            row.step_time_us
        )
    steps = [row.step_time_us for row in found.top]
    assert steps == sorted(steps)
