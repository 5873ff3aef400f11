"""Tables that do not fit on the devices lie in host memory, the least missed ones first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.score.sharding.tasks import Scale, random_task, task_workload
from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.sharding.choice import choose
from stepsight.sharding.tiers import CACHE_SHARES, _times_us, with_tiers
from stepsight.tables.indices.distributions import IndexDistribution
from stepsight.tables.plan import Plan, part_bytes
from stepsight.tables.table import DEVICE, SSD, UVM, UVM_CACHING, Table
from stepsight.tables.torchrec_plan import plan_from_document, torchrec_document

GPU = load_gpu("A100-SXM4-40G")
SKEWED, UNIFORM = IndexDistribution.zipf(1.1), IndexDistribution.uniform()
TABLES = (
    Table("rare", 10_000_000, 64, 1.0, UNIFORM),
    Table("hot", 10_000_000, 64, 50.0, UNIFORM),
    Table("skewed", 10_000_000, 64, 20.0, SKEWED),
)


def placed(room_gb: float, host_gb: float = float("inf")) -> dict[str, Table]:
    found = with_tiers(
        TABLES, GPU, batch=8192, optimizer="sgd", room_bytes=room_gb * 1e9, host_bytes=host_gb * 1e9
    )
    return {table.name: table for table in found}


def test_what_fits_stays_on_the_device():
    assert {table.placement for table in placed(20).values()} == {DEVICE}


def test_the_least_asked_table_leaves_first():
    tables = placed(7)
    assert tables["hot"].placement == DEVICE
    assert tables["rare"].placement != DEVICE


@pytest.mark.parametrize("room_gb", [1.0, 3.0, 5.0, 7.0])
def test_what_is_placed_fits(room_gb: float):
    held = sum(part_bytes(t, t.dim, t.rows, "sgd") for t in placed(room_gb).values())
    assert held <= room_gb * 1e9


def test_what_host_memory_does_not_hold_lies_on_a_drive_and_takes_longer():
    hosted, limited = placed(2), placed(2, host_gb=3)
    moved = [name for name, table in limited.items() if table.placement == SSD]
    assert moved and not any(table.placement == SSD for table in hosted.values())
    left = sum(t.weight_bytes for t in limited.values() if t.placement in (UVM, UVM_CACHING))
    assert left <= 3e9
    assert limited[moved[0]].cache_share in CACHE_SHARES
    for name in moved:
        before, after = (
            _times_us([replace(limited[name], placement=placement)], GPU, 8192, "sgd")[0]
            for placement in (UVM_CACHING, SSD)
        )
        assert after > 1.5 * before


def test_a_search_with_host_memory_places_what_one_without_it_refuses():
    task = random_task(2, 1, Scale(most_rows=1000, tables_per_rank=(2, 2), batches=(4096,)))
    large = [Table(f"t{i}", 60_000_000, 128, 5.0, SKEWED) for i in range(4)]
    workload, platform = task_workload(replace(task, tables=tuple(large))), load_platform("2xA100-SXM4-40G")
    with pytest.raises(InputError, match="too much"):
        choose(workload, platform, plans=20)
    choice = choose(workload, platform, plans=20, host_memory=True)
    plan = choice.winner.plan
    kept = {t.table: t.placement for t in plan.tiers}
    assert kept and DEVICE not in kept.values()
    assert Plan.from_json(plan.to_json()) == plan
    theirs = plan_from_document(torchrec_document(plan), workload.tables, workload.ranks)
    assert set(theirs.tiers) == set(plan.tiers)
    assert predict(workload.with_plan(theirs), platform).step_time_us == pytest.approx(choice.winner.step_us)
    assert any(f.placement != DEVICE for f in choice.figures.tables)
    for figures in choice.figures.tables:
        assert figures.unique_rows <= figures.lookups
        assert 0 <= figures.hit_rate <= 1
