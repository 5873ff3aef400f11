import json
from dataclasses import replace

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.report.sharding.document import document
from stepsight.report.sharding.page import page
from stepsight.sharding.choice import choose, days_of
from stepsight.sharding.with_tables import task_workload, with_tables
from stepsight.tables.plan import TABLE_WISE, Plan
from stepsight.tables.sharders import SHARDERS
from stepsight.tables.table import Table
from stepsight.tables.tasks import Scale, random_task

TASK = random_task(4, 2, Scale(most_rows=100_000, tables_per_rank=(5, 5), batches=(16384,)))


@pytest.fixture(scope="module")
def choice():
    return choose(task_workload(TASK), load_platform("4xV100-SXM2"), budget_s=0.5)


def test_every_sharder_stands_beside_the_winner(choice):
    assert choice.winner.name == "search"
    assert {c.name for c in choice.candidates} == {"search", *SHARDERS}
    steps = [c.step_us for c in choice.candidates if c.fits]
    assert steps == sorted(steps)


def test_a_loser_is_told_why(choice):
    losers = [c for c in choice.candidates[1:] if c.step_us > 1.01 * choice.winner.step_us]
    assert losers
    assert all(c.why.startswith(("imbalance", "all_to_all", "memory", "several")) for c in losers)


def test_the_document_is_plain_data_with_the_plan_in_it(choice):
    text = json.dumps(document(choice))
    data = json.loads(text)
    assert data["step_time_us"] == choice.winner.step_us
    assert data["lower_bound_us"] <= data["step_time_us"]
    assert Plan.from_json(json.dumps(data["plan"])) == choice.winner.plan


def test_the_page_names_every_plan(choice):
    text = page(choice)
    assert all(c.name in text for c in choice.candidates)
    assert text.count("<svg") == 4


def test_tables_that_fit_nowhere_say_by_how_much_and_what_would():
    huge = [Table(f"t{i}", 40_000_000, 256, 1) for i in range(4)]
    workload = with_tables(task_workload(TASK), huge)
    with pytest.raises(InputError, match=r"163\.8 GB.*too much; it would fit on \d+ such ranks"):
        choose(workload, load_platform("4xV100-SXM2"))


def test_a_table_larger_than_a_rank_is_cut_where_that_is_allowed():
    large = [Table("large", 40_000_000, 128, 5), *(Table(f"t{i}", 1000, 128, 5) for i in range(3))]
    workload = with_tables(task_workload(TASK), large)
    platform = load_platform("4xV100-SXM2", ["gpu.memory_gb=16"])
    choice = choose(workload, platform, budget_s=0.3)
    assert len(choice.winner.plan.of_table("large")) > 1
    with pytest.raises(InputError, match=r"best packing.*allow column_wise"):
        choose(workload, platform, kinds=(TABLE_WISE,), budget_s=0.1)


def test_a_table_without_lookups_is_placed_too():
    idle = replace(TASK.tables[0], pooling=0.0)
    choice = choose(
        with_tables(task_workload(TASK), [idle, *TASK.tables[1:]]), load_platform("4xV100-SXM2"), budget_s=0.1
    )
    assert choice.winner.plan.of_table(idle.name)


def test_days_read_one_stream_a_table(tmp_path):
    rng = np.random.default_rng(0)
    tables = tuple(Table(f"t{i}", 1000, 32, 4) for i in range(3))
    for day, skew in enumerate((1.0, 30.0)):
        lengths = np.full((3, 64), 4)
        indices = (rng.random(lengths.sum()) ** skew * 1000).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
        np.savez(tmp_path / f"day{day}.npz", indices=indices, offsets=offsets, lengths=lengths)
    workload = with_tables(task_workload(replace(TASK, batch=64)), tables)
    days = days_of(tables, [tmp_path / "day0.npz", tmp_path / "day1.npz"])
    choice = choose(workload, load_platform("4xV100-SXM2"), days=days, objective="worst", budget_s=0.1)
    assert choice.days == 2
    assert choice.winner.step_us == max(choice.winner.day_us)


def test_a_workload_without_tables_is_refused():
    workload = task_workload(TASK)
    bare = type(workload)(replace(workload.config, tables=(), plan=Plan(4, ())))
    with pytest.raises(InputError, match="no embedding tables"):
        choose(bare, load_platform("4xV100-SXM2"))
