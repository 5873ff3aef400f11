"""The mixture of usual and slow runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepsight.collectives.site import SiteBandwidth
from stepsight.collectives.stalls import SlowOdds, Stalls
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.llm.answer import quick
from stepsight.prediction.llm.compose import Composed
from stepsight.prediction.llm.polled import ANNOUNCEMENTS, BACKWARD_TENSORS, FORWARD_TENSORS
from stepsight.prediction.llm.slow_runs import Mixture, job_layout
from stepsight.workload.llm.buckets import bucket_count
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.cut import pieces


def runs(slow_us: float, probability: float) -> Mixture:
    return Mixture(Composed(100.0, ()), Composed(slow_us, ()), probability)


def test_a_rare_state_is_not_stated() -> None:
    assert not runs(1000.0, 0.2).is_slow and runs(1000.0, 0.2).stated.step_us == 100.0


def test_a_state_far_slower_must_be_likelier_to_be_stated() -> None:
    """Stated wrongly, ten times too long is an error of 900 %, ten times too short one of 90 %."""
    assert runs(130.0, 0.6).is_slow and not runs(1000.0, 0.6).is_slow and runs(1000.0, 0.95).is_slow


def test_a_choice_goes_by_the_geometric_mean_over_runs() -> None:
    assert runs(1000.0, 0.2).expected_us == pytest.approx(100 * 10**0.2)


def test_the_interval_holds_both_states_unless_one_is_rare() -> None:
    low, high = runs(1000.0, 0.2).interval(1.2)
    assert 100 / 1.2 < low < 100 and 1000 < high < 1000 * 1.2
    low, high = runs(1000.0, 0.01).interval(1.2)
    assert low == pytest.approx(100 / 1.2, rel=0.01) and 100 < high < 130
    low, high = runs(1000.0, 0.99).interval(1.2)
    assert 700 < low < 1000 and high == pytest.approx(1000 * 1.2, rel=0.01)


def test_of_two_states_alike_the_interval_is_that_of_one() -> None:
    low, high = runs(100.0 + 1e-6, 0.5).interval(1.2)
    assert (low, high) == (pytest.approx(100 / 1.2), pytest.approx(100 * 1.2))


def config(pipeline: int) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 4, "hidden": 1024, "heads": 8, "ffn": 2816,
        "vocab": 8192, "sequence": 1024, "global_batch": 32, "training": {"framework": "nanotron"},
        "parallel": {"zero": 0, "data": 16 // pipeline, "pipeline": pipeline, "micro_batch": 1},
    }  # fmt: skip
    return read_language(document, "test")


@pytest.fixture(scope="module")
def platform() -> Platform:
    return load_platform("2x8xH100-SXM-80G-400G")


def with_stalls(platform: Platform, odds: float) -> Platform:
    site = SiteBandwidth(1e6, {}, axes=(), stalls=Stalls(0.0, 1e5, SlowOdds({"one": odds})))
    return replace(platform, site=site)


def test_a_slow_run_sleeps_at_every_message_of_every_micro_batch(platform: Platform) -> None:
    slow = quick(config(2), with_stalls(platform, 9.0))
    assert slow.runs.is_slow
    sleeps = ANNOUNCEMENTS * (FORWARD_TENSORS + BACKWARD_TENSORS)
    assert slow.step_us == pytest.approx(config(2).layout.micro_batches * sleeps * 1e5, rel=0.1)


def test_hosts_that_check_collectives_take_time_for_each_rank(platform: Platform) -> None:
    site = SiteBandwidth(1e6, {}, axes=(), stalls=Stalls(1e3, 0.0, SlowOdds({"one": -9.0})))
    c = config(2)
    split = replace(c, layout=replace(c.layout, data=4, tensor=2, sequence_parallel=True))
    plain = quick(split, platform).step_us
    checked = quick(split, replace(platform, site=site)).step_us
    layers, collectives = 2, 4
    assert checked > plain + split.layout.micro_batches * layers * collectives * 2 * 1e3
    sharded = replace(c, layout=replace(c.layout, zero=1))
    assert quick(sharded, replace(platform, site=site)).step_us == quick(sharded, platform).step_us


def test_hosts_that_check_collectives_check_every_bucket_of_whole_gradients(platform: Platform) -> None:
    site = SiteBandwidth(1e6, {}, axes=(), stalls=Stalls(1e3, 0.0, SlowOdds({"one": -9.0})))
    c = config(2)
    buckets = bucket_count(c, pieces(c)[:1])
    longer = quick(c, replace(platform, site=site)).step_us - quick(c, platform).step_us
    assert longer == pytest.approx(buckets * c.layout.data * 1e3, rel=0.01)


def test_a_site_without_slow_runs_states_the_usual_one(platform: Platform) -> None:
    assert quick(config(2), platform).runs.slow is None
    assert quick(config(2), with_stalls(platform, -9.0)).step_us == quick(config(2), platform).step_us


def test_replicas_that_keep_whole_gradients_accumulate_over_all_micro_batches(platform: Platform) -> None:
    c = config(2)
    assert job_layout(c, platform).whole_gradients == c.layout.micro_batches
    sharded = replace(c, layout=replace(c.layout, zero=1))
    alone = replace(c, layout=replace(c.layout, data=1))
    assert job_layout(sharded, platform).whole_gradients == job_layout(alone, platform).whole_gradients == 0


def test_only_models_below_the_largest_were_not_run_again_with_whole_gradients(platform: Platform) -> None:
    layout = job_layout(config(2), platform)
    many = replace(layout, whole_gradients=32)
    assert many.columns()["accumulating"] > 0
    assert replace(many, parameters=80e9).columns()["accumulating"] == 0
