"""One walk: what is stated is what the timeline shows, and composition agrees with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight import predict
from stepsight.collectives.site import read_site
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.breakdown import exposed_by_group
from stepsight.prediction.llm.compose import Composer
from stepsight.prediction.llm.predict import walk_language
from stepsight.workload.files import parse_workload, resolve
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload

WITHIN, EXPOSED_SHARE = 0.015, 0.25
"""How far a composed step may lie from the walked one, and how much farther by its exposed communication and
bubble: the walk lets transfers of two streams share a link, composition lets one wait for the other.
Host-bound steps differ by up to 6 % (condensed operators) and are not held here."""
MODEL = {
    "kind": "transformer", "family": "llama", "layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 8,
    "ffn": 5632, "vocab": 32000, "sequence": 2048,
}  # fmt: skip
LAYOUTS: list[dict[str, Any]] = [
    {}, {"zero": 1}, {"zero": 3}, {"tensor": 2}, {"tensor": 8, "sequence_parallel": True}, {"pipeline": 2},
    {"pipeline": 4}, {"pipeline": 4, "schedule": "zero_bubble"}, {"tensor": 2, "pipeline": 2, "zero": 1},
    {"pipeline": 4, "virtual_stages": 2}, {"context": 2},
]  # fmt: skip
SITE = {"gbps": {"all_reduce": {"2": 100.0}, "all_gather": {"2": 90.0}}, "hop_us": 20.0}


def config(platform: Platform, layout: dict[str, Any], batch: int, recipe: str) -> LanguageConfig:
    document = {
        **MODEL, "global_batch": batch, "training": {"precision": "bf16", "framework": recipe},
        "parallel": {"micro_batch": 1, **layout},
    }  # fmt: skip
    found = resolve(parse_workload(document, "test"), platform.spec.ranks, platform.spec.gpu)
    assert isinstance(found, LanguageWorkload)
    return found.config


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(LAYOUTS), st.sampled_from([32, 64, 128]),
    st.sampled_from(["megatron", "torchtitan"]),
    st.sampled_from([700, 500]), st.booleans(), st.sampled_from([1, 2]),
)  # fmt: skip
def test_a_composed_step_is_the_walked_one(
    layout: dict[str, Any], batch: int, recipe: str, power_w: int, site: bool, nodes: int
) -> None:
    platform = load_platform(f"{nodes}x8xH100-SXM-400G", [f"gpu.power_w={power_w}"])
    if site and nodes > 1:
        platform = Platform(platform.spec, site=read_site(SITE, "site"))
    try:
        c = config(platform, layout, batch, recipe)
    except StepsightError:
        return
    walked = walk_language(c, platform)
    composed = Composer(c, platform)
    assert composed.clock == pytest.approx(walked.priced.clock, rel=1e-3)
    exposed, waiting_us = exposed_by_group(walked)
    near = WITHIN + EXPOSED_SHARE * (sum(exposed.values()) + waiting_us) / walked.step_us
    assert composed.step().step_us == pytest.approx(walked.step_us, rel=near)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_is_stated_is_what_the_timeline_shows(layout: dict[str, Any]) -> None:
    document = {**MODEL, "global_batch": 64, "training": {"framework": "megatron"}, "parallel": layout}
    found = predict(document, "8xH100-SXM")
    assert found.step_us == found.timeline.step_us
    assert sum(found.breakdown_us.values()) == pytest.approx(found.step_us, rel=5e-3)
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
