"""The engine against a slow, obvious reference, and against cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsight.errors import StepsightError
from stepsight.program.job import (
    COMM,
    COMPUTE,
    HOST,
    Collective,
    Group,
    Job,
    Kernel,
    Op,
    RankProgram,
    Wait,
)
from stepsight.simulate.engine import Priced, clocks_at, walk
from stepsight.simulate.lowering import lanes, launches_of

from .reference import finish_times, late_of

HOST_US = (1.0, 2.0, 3.0, 0.5, 0.25)


def kernel(us: float, stream: str = COMPUTE) -> Kernel:
    return Kernel.of("other", stream=stream, us=us)


def collective(
    us: float, kind: str = "all_reduce", group: str = "world", stream: str = COMM, late_us: float = 0.0
) -> Collective:
    return Collective(kind, us, group, stream, name=str(late_us))


def finish(job: Job, *, host=(0.0,) * 5, launch_us=0.0, gap_us=0.0, synchronous=False, spread=0.0):
    """The engine's finish by rank; a kernel takes its ``us`` size, a collective its bytes."""
    found = lanes(job, synchronous=synchronous)
    priced = []
    for lane in found:
        device = np.zeros((lane.tape.launches, 1, len(lane.ranks)))
        late = np.zeros_like(device)
        spent = np.zeros((lane.tape.marks, 1, 1))
        for r, (rank, p) in enumerate(zip(lane.ranks, lane.program_of_rank, strict=True)):
            items = [i for op in job.programs[p].ops for i in launches_of(op)]
            device[:, 0, r] = [time_of(int(rank), i, spread) for i in items]
            late[:, 0, r] = [late_of(i) if isinstance(i, Collective) else 0.0 for i in items]
        for i, op in enumerate(job.programs[lane.program_of_rank[0]].ops):
            n, lo, hi = len(launches_of(op)), lane.tape.op_start_mark[i], lane.tape.op_end_mark[i]
            spent[lo] = host[0]
            spent[hi] = host[2] if n else host[4]
            spent[lo + 1 : hi, 0, 0] = [(host[1] if j == 0 else host[4]) + host[3] for j in range(n)]
        priced.append(Priced(spent, device, late if late.any() else None))
    start = [clocks_at(lane, np.array(job.start_us or (0.0,) * job.ranks)) for lane in found]
    delays = {"launch_us": launch_us, "gap_us": gap_us}
    result = walk(found, priced, job.groups, start=start, synchronous=synchronous, keep=True, **delays)
    for times in result.lanes:
        assert (times.end_us >= times.begin_us - 1e-9).all()
        assert (times.begin_us >= times.start_us - 1e-9).all()
    return result.finish_us[0]


def time_of(rank: int, item: Kernel | Collective, spread: float) -> float:
    base = item.bytes if isinstance(item, Collective) else item.dim("us")
    return base * (1 + spread * rank)


def job_of(*programs: list[Op], **more) -> Job:
    job = Job.of([RankProgram(tuple(ops)) for ops in programs])
    return Job(job.programs, job.program_of_rank, more.get("groups", job.groups), more.get("start_us", ()))


def test_kernels_of_one_stream_run_one_after_the_other():
    assert finish(job_of([Op("a", (kernel(10),)), Op("b", (kernel(5),))])) == [15]


def test_two_streams_overlap():
    assert finish(job_of([Op("a", (kernel(10),)), Op("b", (kernel(7, "copy"),))])) == [10]


def test_a_late_host_starves_the_stream():
    ops = [Op("a", (kernel(1),)), Op("b", (kernel(1),))]
    # T1 T2 T4, then T3, then T1 T2 T4 again: the second launch is issued at 3.5 + 3 + 3.5.
    assert finish(job_of(ops), host=HOST_US) == pytest.approx([3.5 + 3.0 + 3.5 + 3.0])


def test_a_collective_waits_for_the_compute_that_made_its_input():
    assert finish(job_of([Op("gemm", (kernel(10),)), Op("ar", collective=collective(4))])) == [14]


def test_communication_hides_behind_later_compute():
    ops = [Op("a", (kernel(10),)), Op("ar", collective=collective(20)), Op("b", (kernel(30),))]
    assert finish(job_of(ops)) == [40]


def test_an_exposed_all_to_all_delays_whoever_reads_it():
    ops = [
        Op("lookup", (kernel(10),)),
        Op("a2a", collective=collective(20, "all_to_all")),
        Op("bottom", (kernel(5),)),
        Op("interaction", (kernel(3),), waits=(Wait(COMPUTE, 1),)),
    ]
    assert finish(job_of(ops)) == [33]


def test_ranks_that_the_job_does_not_hold_keep_the_others_waiting():
    assert finish(job_of([Op("a", (kernel(5),)), Op("ar", collective=collective(10, late_us=7))])) == [22]


def test_everyone_waits_for_the_straggler():
    slow, fast = [Op("a", (kernel(50),))], [Op("a", (kernel(5),))]
    both = Op("ar", collective=collective(10))
    assert finish(job_of([*slow, both], [*fast, both])).tolist() == [60, 60]


def test_a_rank_that_enters_late_delays_the_others():
    ops = [Op("ar", collective=collective(10))]
    assert finish(job_of(ops, ops, start_us=(0.0, 7.0))).tolist() == [17, 17]


def test_a_blocking_copy_holds_the_host():
    ops = [Op("a", (kernel(100),)), Op("item", (kernel(1),), blocks_host=True), Op("b", (kernel(10),))]
    # The host is released at 101 and a half later than it would be: then T3 T1 T2 T4 before b.
    released = 3.5 + 100 + 1
    assert finish(job_of(ops), host=HOST_US) == pytest.approx([released + 3 + 3.5 + 10])


def test_on_a_synchronous_device_the_host_executes_the_kernel():
    ops = [Op("a", (kernel(10),)), Op("ar", collective=collective(20)), Op("b", (kernel(5),))]
    assert finish(job_of(ops), synchronous=True) == [30]
    ops.append(Op("wait", waits=(Wait(COMPUTE, 1),)))
    ops.append(Op("c", (kernel(5),)))
    assert finish(job_of(ops), synchronous=True) == [35]


def test_sub_groups_do_not_wait_for_each_other():
    pairs = {"tp": (Group("tp0", (0, 1)), Group("tp1", (2, 3)))}
    programs = [
        [Op("a", (kernel(t),)), Op("ar", collective=collective(1, group="tp"))] for t in (1, 2, 30, 4)
    ]
    assert finish(job_of(*programs, groups=pairs)).tolist() == [3, 3, 31, 31]


def test_different_collectives_at_the_same_place_are_an_error():
    one, two = [Op("x", collective=collective(1))], [Op("x", collective=collective(1, "all_gather"))]
    with pytest.raises(StepsightError, match="all_reduce on one rank and all_gather on rank 1"):
        finish(job_of(one, two))


def test_ranks_that_wait_for_each_other_for_ever_are_an_error():
    with pytest.raises(StepsightError, match="for ever"):
        finish(job_of([Op("x", collective=collective(1))], [Op("y")]))


def test_a_wait_for_a_later_op_is_an_error():
    with pytest.raises(StepsightError, match="does not come before"):
        finish(job_of([Op("x", waits=(Wait(COMPUTE, 3),))]))


STREAMS = st.sampled_from([COMPUTE, "copy", "side"])
TIMES = st.integers(0, 40).map(float)
LATE = st.sampled_from([0.0, 0.0, 15.0])


@st.composite
def ops(draw, index: int):
    shape = draw(
        st.sampled_from(["kernels", "kernels", "kernels", "collective", "wait", "host_wait", "block"])
    )
    kernels = tuple(kernel(draw(TIMES), draw(STREAMS)) for _ in range(draw(st.integers(0, 3))))
    on = draw(st.one_of(st.sampled_from([COMPUTE, "comm"]), st.integers(0, index - 1))) if index else COMPUTE
    if shape == "collective":
        group = draw(st.sampled_from(["world", "pairs"]))
        kind = draw(st.sampled_from(["all_reduce", "all_to_all"]))
        return Op(
            "c",
            kernels,
            collective(draw(TIMES), kind, group, draw(st.sampled_from(["comm", "comm2"])), draw(LATE)),
        )
    if shape == "wait":
        return Op("w", kernels, waits=(Wait(draw(st.sampled_from([COMPUTE, "comm"])), on),))
    if shape == "host_wait":
        return Op("h", kernels, waits=(Wait(HOST, on),))
    return Op("k", kernels, blocks_host=shape == "block")


@st.composite
def jobs(draw):
    length = draw(st.integers(1, 14))
    skeleton = [draw(ops(i)) for i in range(length)]
    ranks = draw(st.sampled_from([2, 4]))
    other = [o for o in skeleton for _ in range(draw(st.integers(1, 2)))] if draw(st.booleans()) else None
    programs = [RankProgram(tuple(skeleton))]
    if other and not any(o.waits or o.collective for o in skeleton):
        programs.append(RankProgram(tuple(other)))
    of_rank = tuple(draw(st.integers(0, len(programs) - 1)) for _ in range(ranks))
    groups = {
        "world": (Group("world", tuple(range(ranks))),),
        "pairs": tuple(Group(f"p{i}", (i, i + 1)) for i in range(0, ranks, 2)),
    }
    starts = tuple(float(draw(st.integers(0, 20))) for _ in range(ranks))
    return Job(tuple(programs), of_rank, groups, starts)


@settings(max_examples=300, deadline=None)
@given(jobs(), st.booleans(), st.booleans())
def test_the_engine_agrees_with_the_reference(job, synchronous, with_host):
    host = HOST_US if with_host else (0.0,) * 5
    launch, gap = (0.0, 0.0) if synchronous else (0.75, 0.5)
    expected = finish_times(
        job, lambda r, k: time_of(r, k, 0.1), lambda r, c: time_of(r, c, 0.1), lambda op: host,
        launch_us=launch, gap_us=gap, synchronous=synchronous,
    )  # fmt: skip
    ours = finish(job, host=host, launch_us=launch, gap_us=gap, synchronous=synchronous, spread=0.1)
    assert ours == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(jobs(), st.randoms(use_true_random=False))
def test_no_step_is_shorter_than_a_stream_of_its_own(job, random):
    ended = finish(job)
    for rank, p in enumerate(job.program_of_rank):
        busy: dict[str, float] = {}
        for item in (i for op in job.programs[p].ops for i in launches_of(op)):
            busy[item.stream] = busy.get(item.stream, 0.0) + time_of(rank, item, 0.0)
        assert ended[rank] >= max(busy.values(), default=0.0) - 1e-9


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_swapping_all_ranks_changes_nothing(job):
    turned = Job(job.programs, job.program_of_rank[::-1], job.groups, job.start_us[::-1])
    assert finish(turned)[::-1] == pytest.approx(finish(job))


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_wide_and_narrow_walks_agree(job):
    narrow = finish(job, host=HOST_US, spread=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepsight.simulate.engine.WIDE", 1)
        assert finish(job, host=HOST_US, spread=0.1) == pytest.approx(narrow)
