import json

import pytest

from stepsight.errors import InputError
from stepsight.tables.files import read_tables


def test_csv_with_optional_columns(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim,pooling,zipf,dtype\nuser,1_000,64,20.5,1.05,fp16\nitem,50,32,1,,\n")
    user, item = read_tables(path)
    assert (user.name, user.rows, user.dim, user.pooling, user.dtype) == ("user", 1000, 64, 20.5, "fp16")
    assert user.indices.kind == "zipf"
    assert (item.indices.kind, item.dtype) == ("uniform", "fp32")


def test_a_csv_without_a_needed_column_names_it(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,pooling\na,10,1\n")
    with pytest.raises(InputError, match="no column dim"):
        read_tables(path)


def test_a_bad_csv_cell_names_its_line(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim,pooling\na,10,8,1\nb,many,8,1\n")
    with pytest.raises(InputError, match=r"tables.csv:3: rows: is 'many'"):
        read_tables(path)


def test_torchrec_embedding_bag_configs(tmp_path):
    path = tmp_path / "tables.json"
    configs = [
        {"num_embeddings": 100, "embedding_dim": 64, "name": "a", "feature_names": ["f", "g"],
         "data_type": "DataType.FP16", "pooling": "SUM", "pooling_factors": [10, 30]},
        {"num_embeddings": 10, "embedding_dim": 8, "name": "b", "feature_names": ["h"]},
    ]  # fmt: skip
    path.write_text(json.dumps(configs))
    a, b = read_tables(path)
    assert (a.pooling, a.features, a.lookups, a.dtype) == (20, 2, 40, "fp16")
    assert b.pooling == 1.0


@pytest.mark.parametrize("text", ["{", "3", '[{"name": "a"}]', "[1]"])
def test_a_json_that_holds_no_tables_is_refused(tmp_path, text):
    path = tmp_path / "tables.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"tables.json"):
        read_tables(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_tables(tmp_path / "none.csv")
