"""One walk: what is stated is what the timeline shows."""

from __future__ import annotations

from typing import Any

import pytest

from stepsight import predict
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.language import walk_language
from stepsight.workload.files import parse_workload, resolve
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload

MODEL = {
    "kind": "transformer", "family": "llama", "layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 8,
    "ffn": 5632, "vocab": 32000, "sequence": 2048,
}  # fmt: skip
LAYOUTS: list[dict[str, Any]] = [
    {}, {"zero": 1}, {"zero": 3}, {"tensor": 2}, {"tensor": 8, "sequence_parallel": True}, {"pipeline": 2},
    {"pipeline": 4}, {"pipeline": 4, "schedule": "zero_bubble"}, {"tensor": 2, "pipeline": 2, "zero": 1},
    {"pipeline": 4, "virtual_stages": 2}, {"context": 2},
]  # fmt: skip


def config(platform: Platform, layout: dict[str, Any], batch: int, recipe: str) -> LanguageConfig:
    document = {
        **MODEL, "global_batch": batch, "training": {"precision": "bf16", "framework": recipe},
        "parallel": {"micro_batch": 1, **layout},
    }  # fmt: skip
    found = resolve(parse_workload(document, "test"), platform.spec.ranks, platform.spec.gpu)
    assert isinstance(found, LanguageWorkload)
    return found.config


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_is_stated_is_what_the_timeline_shows(layout: dict[str, Any]) -> None:
    document = {**MODEL, "global_batch": 64, "training": {"framework": "megatron"}, "parallel": layout}
    found = predict(document, "8xH100-SXM")
    assert found.step_time_us == found.timeline.step_us
    assert sum(found.breakdown_us.values()) == pytest.approx(found.step_time_us, rel=5e-3)
    for rank in found.ranks:
        parts = rank.compute_us + rank.exposed_communication_us + rank.rank_wait_us + rank.idle_us
        assert parts == pytest.approx(rank.step_us, rel=5e-3)


def test_stages_have_the_numbers_of_their_ranks() -> None:
    document = {
        **MODEL, "global_batch": 64, "training": {"framework": "megatron"},
        "parallel": {"pipeline": 4, "tensor": 2},
    }  # fmt: skip
    found = predict(document, "8xH100-SXM")
    assert [found.timeline.rank(i).number for i in range(4)] == [0, 2, 4, 6]


def test_a_long_pipeline_is_continued_by_its_period() -> None:
    platform = load_platform("8xH100-SXM")
    c = config(platform, {"pipeline": 8}, 256, "megatron")
    short, whole = (walk_language(c, platform, blocks=n) for n in (3, 1000))
    assert whole.priced.job.whole and short.micro_batches_left_out > 0
    assert short.step_us == pytest.approx(whole.step_us, rel=2e-3)


def test_micro_batches_left_out_are_counted_one_by_one() -> None:
    platform = load_platform("8xH100-SXM")
    c = config(platform, {"pipeline": 8, "virtual_stages": 2}, 128, "megatron")
    timeline = walk_language(c, platform, blocks=3)
    skipped = {p.period.skipped for p in timeline.priced.job.programs if p.period}
    assert skipped and timeline.micro_batches_left_out == 8 * max(skipped)  # a group of as many as stages
