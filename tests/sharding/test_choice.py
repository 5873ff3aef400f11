import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from lab.score.sharding.tasks import Scale, random_task, task_workload
from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.report.sharding import sharding_page
from stepsight.sharding.choice import choose, days_of
from stepsight.tables.plan import COLUMN_WISE, DATA_PARALLEL, KINDS, ROW_WISE, TABLE_WISE, Plan, table_kinds
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table
from stepsight.workload.files import load_workload

TASK = random_task(4, 2, Scale(most_rows=100_000, tables_per_rank=(5, 5), batches=(16384,)))


@pytest.fixture(scope="module")
def choice():
    return choose(task_workload(TASK), load_platform("4xV100-SXM2"), plans=600)


def test_every_sharder_stands_beside_the_winner(choice):
    assert choice.winner.name == "search"
    assert {c.name for c in choice.candidates} == {"search", *SHARDERS}
    steps = [c.step_us for c in choice.candidates[1:] if c.fits]
    assert steps == sorted(steps)
    assert choice.winner.step_us <= min(steps)


def test_a_loser_is_told_why(choice):
    losers = [c for c in choice.candidates[1:] if c.step_us > 1.01 * choice.winner.step_us]
    assert losers
    assert all(c.why.startswith(("imbalance", "all_to_all", "memory", "several")) for c in losers)


def test_the_document_is_plain_data_with_the_plan_in_it(choice):
    text = json.dumps(choice.to_dict())
    data = json.loads(text)
    assert data["step_time_us"] == choice.winner.step_us
    assert data["lower_bound_us"] <= data["step_time_us"]
    assert Plan.from_json(json.dumps(data["plan"])) == choice.winner.plan


def test_the_page_names_every_plan(choice):
    text = sharding_page(choice)
    assert all(c.name in text for c in choice.candidates)
    assert "Which table lives where" in text
    assert all(f"tables of rank {rank}" in text for rank in range(4))


def test_tables_that_fit_nowhere_say_by_how_much_and_what_would():
    huge = [Table(f"t{i}", 40_000_000, 256, 1) for i in range(4)]
    workload = task_workload(replace(TASK, tables=tuple(huge)))
    with pytest.raises(InputError, match=r"163\.8 GB.*too much; it would fit on \d+ .*--host-memory"):
        choose(workload, load_platform("4xV100-SXM2"))


def test_tables_that_fit_on_more_of_the_platform_say_how_many() -> None:
    dlrm = load_workload("examples/dlrm_mlperf.toml")
    with pytest.raises(InputError, match=r"1 × 82\.5 GB usable .*: --set parallel\.ranks=2"):
        choose(dlrm, load_platform("8xH100-SXM"))


def test_a_table_larger_than_a_rank_is_cut_where_that_is_allowed():
    large = [Table("large", 40_000_000, 128, 5), *(Table(f"t{i}", 1000, 128, 5) for i in range(3))]
    workload = task_workload(replace(TASK, tables=tuple(large)))
    platform = load_platform("4xV100-SXM2", ["gpu.memory_gb=16"])
    choice = choose(workload, platform, plans=300)
    assert sum(shard.table == "large" for shard in choice.winner.plan.shards) > 1
    with pytest.raises(InputError, match=r"best packing.*allow column_wise"):
        choose(workload, platform, kinds=(TABLE_WISE,), plans=100)


def test_a_table_without_lookups_is_placed_too():
    idle = replace(TASK.tables[0], pooling=0.0)
    choice = choose(
        task_workload(replace(TASK, tables=(idle, *TASK.tables[1:]))),
        load_platform("4xV100-SXM2"),
        plans=100,
    )
    assert any(shard.table == idle.name for shard in choice.winner.plan.shards)


def test_days_read_one_stream_a_table(tmp_path):
    rng = np.random.default_rng(0)
    tables = tuple(Table(f"t{i}", 1000, 32, 4) for i in range(3))
    for day, skew in enumerate((1.0, 30.0)):
        lengths = np.full((3, 64), 4)
        indices = (rng.random(lengths.sum()) ** skew * 1000).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
        np.savez(tmp_path / f"day{day}.npz", indices=indices, offsets=offsets, lengths=lengths)
    workload = task_workload(replace(TASK, batch=64, tables=tuple(tables)))
    days = days_of(tables, [tmp_path / "day0.npz", tmp_path / "day1.npz"])
    choice = choose(workload, load_platform("4xV100-SXM2"), days=days, objective="worst", plans=100)
    assert choice.days == 2
    assert choice.winner.step_us == max(choice.winner.day_us)


def test_a_workload_without_tables_is_refused():
    workload = task_workload(TASK)
    bare = type(workload)(replace(workload.config, tables=(), plan=Plan(4, ())))
    with pytest.raises(InputError, match="no embedding tables"):
        choose(bare, load_platform("4xV100-SXM2"))


def test_what_is_reported_is_what_predict_prints(choice):
    platform = load_platform("4xV100-SXM2")
    for c in choice.candidates:
        predicted = predict(task_workload(TASK).with_plan(c.plan), platform)
        assert c.step_us == pytest.approx(predicted.step_time_us, rel=1e-3)


def test_of_equally_fast_plans_the_most_even_wins():
    """The host decides this step: a plan that leaves ranks half empty must not win by rounding."""
    alike = [Table(f"t{i}", 1_000_000, 128, 20.0) for i in range(8)]
    workload = task_workload(replace(TASK, batch=1024, tables=tuple(alike)))
    uneven = Plan.table_wise(alike, [0, 0, 0, 0, 0, 1, 2, 3], 4, "uneven")
    choice = choose(workload, load_platform("4xH100-SXM"), also=[uneven], plans=50)
    assert max(choice.winner.memory_bytes) == pytest.approx(2 * alike[0].weight_bytes)
    assert choice.winner.imbalance < 0.01


def test_the_page_says_where_every_table_lives(choice):
    text = sharding_page(choice)
    assert "Which table lives where" in text
    assert all(f"<td>{t.name}</td>" in text for t in TASK.tables)


def test_plans_of_a_program_of_its_own_are_simulated_as_that_program():
    workload, platform = load_workload("examples/dlrm_nvidia_large.toml"), load_platform("8xA100-SXM4-80G")
    choice = choose(workload, platform, budget_s=1.0)
    assert {shard.kind for shard in choice.winner.plan.shards} == {TABLE_WISE}
    assert choice.winner.step_us <= min(c.step_us for c in choice.candidates if c.name == "nvidia")
    for c in choice.candidates[:2]:
        assert c.step_us == pytest.approx(
            predict(workload.with_plan(c.plan), platform).step_time_us, rel=1e-6
        )


def hugectr(ranks=4):
    changes = [f"parallel.ranks={ranks}", "batch=32768"]
    workload = load_workload("examples/published/dlrm_dcnv2_mlperf.toml", changes)
    return workload, load_platform(f"{ranks}xH100-SXM-80G")


def test_hugectrs_plans_keep_replicated_tables_whole_and_change_how_tables_are_sharded():
    choice = choose(*hugectr(), plans=40)
    usual = next(c for c in choice.candidates if c.name == "hugectr")
    assert choice.winner.step_us <= usual.step_us
    assert {"table_wise", "data_parallel"} <= set(table_kinds(choice.winner.plan).values())
    assert choice.found.priced <= 40


def test_hugectr_without_replicated_tables_offers_no_such_plan():
    choice = choose(*hugectr(8), plans=12, kinds=["table_wise", "row_wise"])
    assert all("data_parallel" not in table_kinds(c.plan).values() for c in choice.candidates)


def test_a_kind_that_the_stack_does_not_have_is_refused():
    with pytest.raises(InputError, match="has no column_wise"):
        choose(*hugectr(), kinds=["column_wise"])


def test_torchrecs_stack_is_searched_too():
    workload = task_workload(TASK)
    torchrec = type(workload)(replace(workload.config, stack="torchrec", input_dist=True))
    choice = choose(torchrec, load_platform("4xV100-SXM2"), plans=50)
    predicted = predict(torchrec.with_plan(choice.winner.plan), load_platform("4xV100-SXM2"))
    assert choice.winner.step_us == pytest.approx(predicted.step_time_us, rel=1e-3)


def test_all_kinds_are_searched_by_default_and_none_lies_below_the_bound():
    tables = [Table(f"t{i}", 500, 128, 20.0) for i in range(6)] + [Table("large", 5_000_000, 128, 5.0)]
    workload = task_workload(replace(TASK, batch=8192, tables=tuple(tables)))
    choice = choose(workload, load_platform("4xV100-SXM2"), plans=200)
    named = choose(workload, load_platform("4xV100-SXM2"), plans=200, kinds=KINDS)
    assert named.found.step_us == choice.found.step_us
    assert choice.found.bound_us <= named.winner.step_us


@pytest.mark.parametrize("seed", range(3))
def test_no_allowed_kind_and_no_listed_plan_makes_the_answer_worse(seed):
    """Small and large tables, with little room to spare."""
    rng = np.random.default_rng(seed)
    rows, dims, bags = 10 ** rng.uniform(3, 7, 10), rng.choice([64, 128], 10), rng.choice([1, 10, 40], 10)
    tables = [Table(f"t{i}", int(rows[i]), int(dims[i]), float(bags[i])) for i in range(10)]
    workload = task_workload(replace(TASK, batch=8192, tables=tuple(tables)))
    largest, together = max(t.weight_bytes for t in tables), sum(t.weight_bytes for t in tables)
    room_gb = 0.5 + (largest + together / 4) / 1e9  # a rank's even share, and one table more
    platform = load_platform("4xV100-SXM2", [f"gpu.memory_gb={room_gb:.2f}"])
    every = choose(workload, platform, plans=100)
    for kinds in ((TABLE_WISE,), (ROW_WISE,), (COLUMN_WISE,), (DATA_PARALLEL, ROW_WISE)):
        fewer = choose(workload, platform, plans=100, kinds=kinds)
        assert every.winner.step_us <= fewer.winner.step_us * (1 + 1e-6)
        assert {shard.kind for shard in fewer.winner.plan.shards} <= {TABLE_WISE, *kinds}
    listed = [c.step_us for c in every.candidates if c.fits]
    assert every.winner.step_us <= min(listed) + 0.01
    assert every.found.bound_us <= min(listed)


@pytest.mark.parametrize("seed", range(3))
def test_more_plans_never_give_a_slower_one_beyond_the_quick_price(seed):
    """Plans are compared by a quick price and the best of them simulated: near-ties may fall either way."""
    rng = np.random.default_rng(seed)
    rows, bags = 10 ** rng.uniform(3, 6.5, 12), rng.choice([1, 5, 20, 50], 12)
    tables = tuple(Table(f"t{i}", int(rows[i]), 128, float(bags[i])) for i in range(12))
    workload = task_workload(replace(TASK, batch=8192, tables=tables))
    platform = load_platform("4xV100-SXM2")
    steps = [choose(workload, platform, plans=plans).winner.step_us for plans in (40, 120, 300)]
    assert all(more <= fewer * 1.001 for fewer, more in itertools.combinations(steps, 2))


def test_a_table_too_large_for_column_parts_does_not_spoil_the_others():
    """Cut by columns as far as allowed it fits nowhere: by rows it does, and the rest stays even."""
    tables = [Table("large", 300_000_000, 64, 1.0), *(Table(f"t{i}", 1_000_000, 64, 20.0) for i in range(40))]
    workload = task_workload(replace(TASK, batch=16384, ranks=8, tables=tuple(tables)))
    choice = choose(workload, load_platform("8xV100-SXM2-32G"), plans=200)
    assert choice.winner.imbalance < 0.05
    assert choice.found.gap < 0.1
    assert not choice.level  # one plan alone fits: that says nothing about what decides the step
