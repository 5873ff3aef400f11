"""Work that overlaps slows down, by as much as it overlaps."""

from __future__ import annotations

import numpy as np
import pytest

from stepsight.hardware.spec import ContentionSpec
from stepsight.program.job import Collective, Job, Kernel, Op, RankProgram
from stepsight.simulate.contention import settle
from stepsight.simulate.engine import Priced, walk
from stepsight.simulate.intervals import covered, union
from stepsight.simulate.lowering import lanes


def settled(
    ops: list[Op], times: list[float], contention: ContentionSpec, computing: list[bool] | None = None,
) -> float:  # fmt: skip
    job = Job.replicated(RankProgram(tuple(ops)), 2)
    found = lanes(job, synchronous=False)
    priced = [Priced(np.zeros((found[0].tape.marks, 1, 1)), np.array(times)[:, None, None])]
    masks = [np.array(computing)] if computing else []
    result, _ = settle(found, priced, contention, lambda p: walk(found, p, job.groups, keep=True), masks)
    return float(result.makespan_us[0])


KERNEL = Kernel.of("other")
ALL_REDUCE = Op("ar", collective=Collective("all_reduce", 1.0))


def test_compute_under_communication_takes_longer():
    ops = [ALL_REDUCE, Op("k", (KERNEL,))]
    # 100 of compute wholly under 1,000 of communication, at half speed.
    assert settled(ops, [1000.0, 100.0], ContentionSpec(2.0, 1.0)) == pytest.approx(1000)
    # 300 of compute under 100 of communication: 100 pass at half speed, so 50 are still to do.
    assert settled(ops, [100.0, 300.0], ContentionSpec(2.0, 1.0)) == pytest.approx(350, abs=0.2)


def test_communication_under_compute_takes_longer():
    ops = [ALL_REDUCE, Op("k", (KERNEL,))]
    assert settled(ops, [300.0, 100.0], ContentionSpec(1.0, 2.0)) == pytest.approx(350, abs=0.2)


def test_what_does_not_overlap_is_not_slowed():
    ops = [Op("k", (KERNEL,)), ALL_REDUCE]
    assert settled(ops, [100.0, 50.0], ContentionSpec(2.0, 2.0)) == pytest.approx(150)


def test_two_collectives_at_once_share_the_link():
    other = Op("a2a", collective=Collective("all_to_all", 1.0, stream="comm2"))
    assert settled([ALL_REDUCE, other], [100.0, 100.0], ContentionSpec()) == pytest.approx(200, rel=0.01)
    # The longer one has the link to itself once the shorter one is done.
    assert settled([ALL_REDUCE, other], [300.0, 100.0], ContentionSpec()) == pytest.approx(400, rel=0.01)


BESIDE = Kernel.of("other", stream="side")


def test_a_kernel_behind_one_that_fills_the_gpu_is_held_up():
    ops = [Op("first", (KERNEL,)), Op("second", (BESIDE, BESIDE))]
    # 400 on one stream; on the other 100, then 200 that begin while the first still runs. Begun at the
    # same time none of the first two goes before the other.
    spec = ContentionSpec(compute_beside_compute=2.0)
    assert settled(ops, [400.0, 100.0, 200.0], spec, [True] * 3) == pytest.approx(450, abs=0.2)


def test_short_kernels_and_copies_run_beside_anything():
    ops = [Op("first", (KERNEL,)), Op("second", (BESIDE, BESIDE))]
    spec = ContentionSpec(compute_beside_compute=2.0)
    assert settled(ops, [400.0, 390.0, 40.0], spec, [True] * 3) == pytest.approx(430, abs=0.2)
    assert settled(ops, [400.0, 300.0, 200.0], spec, [True, False, False]) == pytest.approx(500, abs=0.2)


def test_one_stream_holds_up_nothing():
    ops = [Op("k", (KERNEL, KERNEL))]
    assert settled(ops, [100.0, 100.0], ContentionSpec(compute_beside_compute=2.0), [True] * 2) == 200


def test_union_and_cover_of_intervals():
    busy = union(np.array([5.0, 0.0, 1.0]), np.array([6.0, 2.0, 3.0]))
    assert (busy[0].tolist(), busy[1].tolist()) == ([0.0, 5.0], [3.0, 6.0])
    assert covered(np.array([2.0, 3.5, -1.0]), np.array([5.5, 4.5, 9.0]), *busy).tolist() == [1.5, 0.0, 4.0]
