"""CollectiveModels: what must hold of every platform, and what an answer says about itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.collectives.models import CollectiveModels
from stepsight.errors import StepsightError
from stepsight.estimate import Source
from stepsight.program.job import COLLECTIVE_KINDS

from .platforms import balanced_send_bytes, platform

PLATFORMS = {
    "8xA100": platform(),
    "4xV100": platform("V100-SXM2-16G", 4, link="nvlink_mesh", gbps=150),
    "8xL4": platform("L4", 8, link="pcie", gbps=24),
    "4x8xH100": platform("H100-SXM-80G", 8, 4, gbps=450, nic_gbps=50),
    "2xCPU": platform("cpu", 2, link="loopback", gbps=10),
}
MODELS = {name: CollectiveModels(spec) for name, spec in PLATFORMS.items()}
NAMES = st.sampled_from(sorted(MODELS))
settings.register_profile("collectives", deadline=None)
settings.load_profile("collectives")  # the first question to a platform loads the catalogue
BYTES = st.floats(0, 1e11)


@st.composite
def models_and_ranks(draw):
    models = MODELS[draw(NAMES)]
    ranks = draw(st.permutations(range(models.platform.ranks)))
    return models, tuple(ranks[: draw(st.integers(1, len(ranks)))])


@given(models_and_ranks(), st.sampled_from(COLLECTIVE_KINDS), st.lists(BYTES, min_size=2, max_size=20))
def test_more_bytes_never_take_less_time(drawn, kind, sizes):
    models, ranks = drawn
    times = models.estimate(kind, np.sort(sizes), ranks).time_us
    assert (np.diff(times) >= -1e-9 * times[1:]).all()


@given(models_and_ranks(), st.sampled_from(COLLECTIVE_KINDS), BYTES)
def test_a_time_has_a_source_and_a_spread_and_is_above_zero(drawn, kind, size):
    models, ranks = drawn
    answer = models.estimate(kind, [size], ranks)[0]
    if len(ranks) > 1:
        assert answer.time_us > 0
        assert answer.spread > 0
        assert answer.source in (Source.MEASURED, Source.LEARNED, Source.TRANSFERRED, Source.ROOFLINE)


@given(NAMES, st.sampled_from(COLLECTIVE_KINDS), BYTES)
def test_a_group_of_one_is_free(name, kind, size):
    assert MODELS[name].estimate(kind, [size], (1,)).time_us[0] == 0


@given(NAMES, BYTES)
def test_an_exchange_with_oneself_is_free(name, size):
    finish, whole = MODELS[name].estimate_alltoallv([[size]], (0,))
    assert finish.tolist() == [0] and whole.time_us == 0


@given(models_and_ranks(), st.floats(1, 1e10))
def test_a_balanced_all_to_allv_equals_all_to_all(drawn, size):
    models, ranks = drawn
    ranks = ranks[: len(ranks) // 8 * 8] or ranks  # whole nodes, where there are several
    if models.platform.nodes > 1:
        ranks = tuple(range(models.platform.ranks))
    finish, whole = models.estimate_alltoallv(balanced_send_bytes(size, len(ranks)), ranks)
    balanced = models.estimate("all_to_all", [size], ranks).time_us[0]
    np.testing.assert_allclose(finish, balanced, rtol=1e-9)
    assert whole.time_us == pytest.approx(balanced)


@given(models_and_ranks(), st.randoms(), st.sampled_from(COLLECTIVE_KINDS), BYTES)
def test_permuting_the_ranks_of_a_group_changes_nothing(drawn, random, kind, size):
    models, ranks = drawn
    shuffled = list(ranks)
    random.shuffle(shuffled)
    a, b = models.estimate(kind, [size], ranks), models.estimate(kind, [size], tuple(shuffled))
    assert a.time_us[0] == b.time_us[0]


@given(models_and_ranks(), st.randoms(), st.integers(0, 2**32 - 1))
def test_permuting_the_ranks_of_an_exchange_permutes_their_finish(drawn, random, seed):
    models, ranks = drawn
    matrix = np.random.default_rng(seed).exponential(1e6, (len(ranks), len(ranks)))
    order = list(range(len(ranks)))
    random.shuffle(order)
    finish, _ = models.estimate_alltoallv(matrix, ranks)
    moved, _ = models.estimate_alltoallv(matrix[np.ix_(order, order)], tuple(ranks[i] for i in order))
    np.testing.assert_allclose(moved, finish[order], rtol=1e-9)


@given(models_and_ranks(), st.integers(0, 2**32 - 1))
def test_an_exchange_is_done_when_its_busiest_rank_is(drawn, seed):
    models, ranks = drawn
    matrix = np.random.default_rng(seed).exponential(1e6, (len(ranks), len(ranks)))
    finish, whole = models.estimate_alltoallv(matrix, ranks)
    assert whole.time_us == finish.max()


@given(models_and_ranks(), st.integers(0, 2**32 - 1), st.floats(1, 1e9))
def test_one_more_message_never_ends_an_exchange_earlier(drawn, seed, extra):
    models, ranks = drawn
    n = len(ranks)
    rng = np.random.default_rng(seed)
    matrix = rng.exponential(1e6, (n, n))
    before, _ = models.estimate_alltoallv(matrix, ranks)
    matrix[rng.integers(n), rng.integers(n)] += extra
    after, _ = models.estimate_alltoallv(matrix, ranks)
    assert (after >= before * (1 - 1e-9)).all()


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_many_plans_at_once_are_priced_as_one_by_one(seed):
    models = MODELS["8xA100"]
    sent, received = np.random.default_rng(seed).exponential(1e7, (2, 5, 3, 8))
    together = models.alltoallv_times(sent, received, tuple(range(8)))
    alone = models.alltoallv_times(sent[2, 1], received[2, 1], tuple(range(8)))
    assert together.shape == (5, 3, 8)
    np.testing.assert_allclose(together[2, 1], alone)


def test_what_stays_local_costs_nothing():
    models = MODELS["8xA100"]
    matrix = balanced_send_bytes(1e8, 8)
    before, _ = models.estimate_alltoallv(matrix, tuple(range(8)))
    after, _ = models.estimate_alltoallv(matrix + np.diag(np.full(8, 1e9)), tuple(range(8)))
    np.testing.assert_allclose(after, before)


def test_an_exchange_inside_the_nodes_does_not_pay_for_the_network():
    models = MODELS["4x8xH100"]
    node = np.arange(32) // 8
    inside = np.where(node[:, None] == node[None, :], 1e7, 0.0)
    across = np.where(node[:, None] == node[None, :], 0.0, 1e7 / 3)
    _, local = models.estimate_alltoallv(inside, tuple(range(32)))
    _, remote = models.estimate_alltoallv(across, tuple(range(32)))
    assert local.time_us < remote.time_us


def test_a_measured_group_answers_without_a_note():
    answer = MODELS["8xA100"].estimate("all_reduce", [2**26], tuple(range(8)))[0]
    assert answer.source is Source.MEASURED and answer.note == ""


def test_beyond_the_measured_sizes_the_answer_says_so():
    answer = MODELS["8xA100"].estimate("all_reduce", [2**40], tuple(range(8)))[0]
    assert "extrapolated beyond the measured sizes" in answer.note


def test_another_group_size_says_so_and_is_less_sure():
    measured = MODELS["4xV100"].estimate("all_to_all", [2**26], (0, 1, 2, 3))[0]
    eight = CollectiveModels(platform("V100-SXM2-16G", 8, link="nvlink_mesh", gbps=150))
    carried = eight.estimate("all_to_all", [2**26], tuple(range(8)))[0]
    assert carried.source is Source.LEARNED and "extrapolated from 4 to 8 ranks" in carried.note
    assert carried.spread > measured.spread


def test_a_relative_stands_in_marked_as_such():
    answer = MODELS["8xL4"].estimate("all_reduce", [2**24], tuple(range(8)))[0]
    assert answer.source is Source.TRANSFERRED and "usual PCIe server" in answer.note


def test_across_nodes_says_how_far_it_can_be_trusted():
    answer = MODELS["4x8xH100"].estimate("all_reduce", [2**24], tuple(range(32)))[0]
    assert (
        answer.source is Source.TRANSFERRED
        and "scaled to this group" in answer.note
        and answer.spread >= 0.25
    )


def test_a_link_that_nobody_measured_falls_back_to_its_data_sheet():
    answer = MODELS["2xCPU"].estimate("all_reduce", [2**24], (0, 1))[0]
    assert answer.source is Source.ROOFLINE and "data-sheet" in answer.note


def test_a_sub_group_inside_a_node_stays_off_the_network():
    models = MODELS["4x8xH100"]
    inside = models.estimate("all_reduce", [2**26], (8, 9, 10, 11)).time_us[0]
    across = models.estimate("all_reduce", [2**26], (0, 8, 16, 24)).time_us[0]
    assert inside < across


def test_a_slower_link_takes_longer():
    fast, slow = platform("X", link="nvswitch", gbps=300), platform("X", link="nvswitch", gbps=100)
    a, b = (CollectiveModels(p).estimate("all_gather", [2**28], range(8)) for p in (fast, slow))
    assert b.time_us[0] > 2 * a.time_us[0]


def test_a_barrier_costs_an_all_reduce_of_nothing():
    models = MODELS["8xA100"]
    barrier = models.estimate("barrier", [1e9], tuple(range(8))).time_us[0]
    assert barrier == models.estimate("all_reduce", [4], tuple(range(8))).time_us[0]


@pytest.mark.parametrize(
    ("ranks", "said"), [((0, 8), "the platform has 8 GPUs"), ((0, 0), "twice"), ((), "without ranks")]
)
def test_a_group_that_the_platform_cannot_hold_is_refused(ranks, said):
    with pytest.raises(StepsightError, match=said):
        MODELS["8xA100"].estimate("all_reduce", [1024], ranks)


def test_unknown_collectives_and_sizes_are_refused():
    models = MODELS["8xA100"]
    with pytest.raises(StepsightError, match="unknown collective"):
        models.estimate("all_shuffle", [1024], (0, 1))
    with pytest.raises(StepsightError, match="zero or more"):
        models.estimate("all_reduce", [-1], (0, 1))
    with pytest.raises(StepsightError, match="send matrix"):
        models.estimate_alltoallv(np.ones((3, 3)), (0, 1))
    with pytest.raises(StepsightError, match="negative"):
        models.estimate_alltoallv(-np.ones((2, 2)), (0, 1))


def test_a_message_between_two_nodes_reaches_its_nic() -> None:
    """Rings of pairs over many nodes end with the slowest pair and do not answer for one of them."""
    time_us = MODELS["4x8xH100"].estimate("send_recv", [64e6], [0, 8]).time_us[0]
    assert 0.7 * 50 < 64e6 / time_us / 1e3 < 50
