"""Ranks that are alike are walked once, and nothing about the answer shows it."""

import numpy as np
import pytest

from stepsight import load_platform
from stepsight.program.job import Collective, Group, Job, Kernel, Op, RankProgram, world
from stepsight.simulate.fold import fold, layout, unfolded
from stepsight.simulate.price import price
from stepsight.simulate.timeline import run


def finish_by_row_sum(collective, group):
    return collective.send_bytes.sum(axis=1)


def classes(job, per_node=8):
    return fold(job, per_node, finish_by_row_sum)


def program(*collectives, name=""):
    ops = [Op("aten::mm", (Kernel.of("gemm", m=64, n=64, k=64),))]
    return RankProgram((*ops, *(Op("c10d::op", collective=c) for c in collectives)), name)


def test_replicas_of_one_program_are_one_class():
    folded = classes(Job.replicated(program(Collective("all_reduce", 1e6)), 4096))
    assert folded.job.ranks == 1
    assert folded.count.tolist() == [4096]
    assert folded.job.groups["world"][0].ranks == (0,)


def test_split_ranks_are_as_many_classes_as_stages():
    job = split(data=4, tensor=2, pipeline=4)
    folded = classes(job)
    assert folded.job.ranks == 4
    assert folded.members(1) == list(range(8, 16))


def test_a_set_that_crosses_a_node_is_another_class():
    pairs = tuple(Group(f"pair {i}", (2 * i, 2 * i + 1)) for i in range(3))
    job = Job((program(Collective("all_reduce", 1e6, "pair")),), (0,) * 6, {"pair": pairs})
    folded = classes(job, per_node=3)
    assert folded.of_rank.tolist() == [0, 0, 1, 1, 0, 0]


def test_who_meets_somebody_else_is_another_class():
    # Ranks 0 to 3 run one program; 3 meets rank 4, which runs another.
    pairs = (Group("a", (0, 1)), Group("b", (2, 5)), Group("c", (3, 4)))
    call = Collective("all_reduce", 1e6, "pair")
    programs = (program(call), program(call, call))
    job = Job(programs, (0, 0, 0, 0, 1, 0), {"pair": pairs})
    assert classes(job).of_rank.tolist() == [0, 0, 0, 1, 2, 0]


def test_ranks_that_move_other_bytes_are_other_classes():
    bytes_ = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [5.0, 5.0, 0.0]])
    job = Job.replicated(program(Collective("all_to_allv", 10.0, send_bytes=bytes_)), 3)
    assert classes(job).of_rank.tolist() == [0, 0, 1]


def test_ranks_that_start_apart_are_other_classes():
    once = program(Collective("all_reduce", 1e6))
    job = Job((once,), (0, 0, 0), world(3), (0.0, 5.0, 0.0))
    assert classes(job).of_rank.tolist() == [0, 1, 0]


def test_layout_counts_nodes_and_neighbours():
    rows = np.array([[0, 1, 2, 3], [6, 7, 8, 9], [0, 8, 16, 24]])
    nodes, per_node = layout(rows, 8)
    assert nodes.tolist() == [1, 2, 4]
    assert per_node.tolist() == [4, 2, 1]


@pytest.mark.parametrize("spread", [(2, 2, 2), (1, 4, 2), (4, 1, 2), (8, 1, 1)])
def test_the_answer_is_that_of_all_ranks(spread):
    data, tensor, pipeline = spread
    platform = load_platform("8xA100-SXM4-80G")
    job = split(data=data, tensor=tensor, pipeline=pipeline)
    once = run(price(job, platform), platform)
    all_of_them = run(price(job, platform, fold_identical=False), platform)
    assert once.priced.fold.job.ranks < all_of_them.priced.fold.job.ranks
    assert once.step_us == pytest.approx(all_of_them.step_us, rel=1e-12)
    np.testing.assert_allclose(once.end_us, all_of_them.end_us, rtol=1e-12)
    for rank in range(8):
        np.testing.assert_allclose(once.rank(rank).end_us, all_of_them.rank(rank).end_us, rtol=1e-12)


def test_unfolded_keeps_every_rank():
    job = Job.replicated(program(), 3)
    assert unfolded(job).job is job


def split(*, data, tensor, pipeline):
    """Stages of tensor groups, each replicated, that pass a message on."""
    ranks = np.arange(data * tensor * pipeline).reshape(pipeline, data, tensor)
    groups = {"tensor": ranks.reshape(-1, tensor), "data": ranks.swapaxes(1, 2).reshape(-1, data)}
    groups["ends"] = ranks.reshape(pipeline, -1).T
    compute = Op("aten::mm", (Kernel.of("gemm", m=2048, n=2048, k=512),))
    programs = []
    for stage in range(pipeline):
        calls = (Op("c10d::op", collective=Collective("all_reduce", 1e7, name)) for name in groups)
        programs.append(RankProgram((*(compute,) * (1 + stage), *calls)))
    return Job(
        tuple(programs), tuple(np.repeat(np.arange(pipeline), data * tensor).tolist()),
        {name: tuple(Group(f"{name} {i}", tuple(row.tolist())) for i, row in enumerate(rows))
         for name, rows in groups.items()},
    )  # fmt: skip
