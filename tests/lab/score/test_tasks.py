from lab.score.sharding.tasks import BATCHES, DIMS, Scale, population, random_task


def test_the_same_seed_draws_the_same_task():
    assert random_task(4, 7) == random_task(4, 7)
    assert random_task(4, 7) != random_task(4, 8)


def test_tasks_lie_in_the_published_ranges():
    for task in (random_task(4, seed, heavy=seed % 2 == 0) for seed in range(6)):
        assert 36 <= len(task.tables) <= 66
        assert task.batch in BATCHES
        assert {table.dim for table in task.tables} <= set(DIMS)


def test_heavy_tasks_hold_only_heavy_tables():
    assert all(table.pooling >= 20 for table in random_task(2, 0, heavy=True).tables)
    assert any(table.pooling < 20 for table in random_task(2, 0, heavy=False).tables)


def test_the_population_has_the_published_means():
    tables = population(856, seed=1)
    assert 2.5e6 < sum(t.rows for t in tables) / 856 < 6e6
    assert 10 < sum(t.pooling for t in tables) / 856 < 20


def test_a_scale_bounds_what_a_machine_must_hold():
    scale = Scale(dims=(16,), batches=(128,), most_table_bytes=1_000_000, tables_per_rank=(3, 3))
    task = random_task(2, 0, scale)
    assert len(task.tables) == 6
    assert all(table.weight_bytes <= 1_000_000 for table in task.tables)
