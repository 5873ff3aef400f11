import pytest

from stepsight.errors import InputError
from stepsight.tables.table import Table, check_tables


def test_a_table_knows_its_bytes_and_lookups():
    table = Table("a", rows=1000, dim=64, pooling=5, features=2)
    assert table.weight_bytes == 1000 * 64 * 4
    assert table.lookups == 10
    assert table.output_columns == 128


def test_half_precision_rows_take_half_the_bytes():
    assert Table("a", 10, 8, 1, dtype="fp16").weight_bytes * 2 == Table("a", 10, 8, 1).weight_bytes


@pytest.mark.parametrize(
    ("optimizer", "bytes_"),
    [("sgd", 0), ("adagrad", 4 * 10 * 8), ("rowwise_adagrad", 4 * 10), ("adam", 2 * 4 * 10 * 8)],
)
def test_optimizer_state_is_per_weight_or_per_row(optimizer, bytes_):
    assert Table("a", 10, 8, 1).state_bytes(optimizer) == bytes_


def test_an_unknown_optimizer_is_named():
    with pytest.raises(InputError, match="sgdd"):
        Table("a", 10, 8, 1).state_bytes("sgdd")


@pytest.mark.parametrize(
    "wrong", [{"rows": 0}, {"dim": 0}, {"pooling": -1}, {"pooling": float("nan")}, {"features": 0}]
)
def test_impossible_sizes_are_refused(wrong):
    sizes = {"rows": 10, "dim": 8, "pooling": 1.0, **wrong}
    with pytest.raises(InputError, match="'a'"):
        Table("a", **sizes)


def test_a_table_nobody_looks_up_is_allowed():
    assert Table("idle", 10, 8, 0).lookups == 0


def test_tables_need_names_of_their_own():
    with pytest.raises(InputError, match="named 'a'"):
        check_tables([Table("a", 1, 1, 1), Table("a", 2, 1, 1)])
    with pytest.raises(InputError, match="no embedding table"):
        check_tables([])
