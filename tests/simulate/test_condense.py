"""A condensed tape walks exactly like the full one, whatever the varying launches take."""

import numpy as np
import pytest

from lab.score.sharding.tasks import Scale, random_task, task_workload
from stepsight.platform.load import load_platform
from stepsight.simulate.condense import condense
from stepsight.simulate.engine import Priced, walk
from stepsight.simulate.price import price


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_shorter_walk_ends_when_the_full_one_does(synchronous, seed):
    rng = np.random.default_rng(seed)
    task = random_task(2, seed, Scale(most_rows=1000, tables_per_rank=(2, 3)))
    job = task_workload(task).job("cpu" if synchronous else "cuda")
    overrides = ["host.synchronous=true"] if synchronous else []
    priced = price(job, load_platform("2xV100-SXM2", overrides))
    groups, configurations = job.groups, 5
    full_lanes, full_times, short_lanes, short_times = [], [], [], []
    for lane in priced.lanes:
        launches = lane.lane.tape.launches
        varying = sorted(rng.choice(launches, size=6, replace=False).tolist())
        short = condense(lane.lane, lane.times, varying, synchronous=synchronous, gap_us=1.5)
        assert short.lane.tape.launches < launches
        shape = (configurations, len(lane.lane.ranks))
        full = np.broadcast_to(lane.times.device_us, (launches, *shape)).copy()
        less = np.broadcast_to(short.times.device_us, (short.lane.tape.launches, *shape)).copy()
        for launch in varying:
            full[launch] = less[short.launch_of[launch]] = rng.uniform(0, 2000, shape)
        full_lanes.append(lane.lane)
        full_times.append(Priced(lane.times.host_us, full))
        short_lanes.append(short.lane)
        short_times.append(Priced(short.times.host_us, less))
    options = {"launch_us": 3.0, "gap_us": 1.5, "synchronous": synchronous, "configurations": configurations}
    whole = walk(full_lanes, full_times, groups, **options)
    brief = walk(short_lanes, short_times, groups, **options)
    np.testing.assert_allclose(brief.finish_us, whole.finish_us, rtol=1e-9)
