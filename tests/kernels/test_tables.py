"""Tables of kernels: the layouts of the measured tables, and errors that name the place."""

import csv
import io
from pathlib import Path

import pytest

from lab.datasets.folder import read_table
from lab.datasets.kernel_tables.rows import rows_of
from stepsight.errors import InputError
from stepsight.prediction.kernel_times import table_text, time_table


def test_the_fp32_gemm_layout_whose_n_is_the_reduction() -> None:
    (rows,) = rows_of({"gpu": ["V100"], "op": ["bmm"], "B": [4], "M": [8], "N": [16], "K": [32]})
    assert rows.batch.family == "gemm" and rows.timed_by_events
    assert {k: v.tolist() for k, v in rows.batch.dims.items()} == {
        "batch": [4],
        "m": [8],
        "n": [32],
        "k": [16],
        "shared": [0],
    }


def test_short_names_of_the_event_timed_tables_mean_their_boards() -> None:
    gemm = {"gpu": ["V100", "A100-SXM4-40G"], "op": ["bmm"] * 2, "B": [4] * 2, "M": [8] * 2, "N": [16] * 2}
    assert [rows.gpu for rows in rows_of(gemm | {"K": [32] * 2})] == ["V100-PCIE-32G", "A100-SXM4-40G"]


def test_the_vector_layout_tells_two_tensors_from_one() -> None:
    rows = rows_of({"gpu": ["V100"] * 3, "op": ["add", "addu", "ln"], "B": [10] * 3, "H": [20] * 3})
    assert [r.batch.family for r in rows] == ["elementwise", "elementwise", "layer_norm"]
    assert [r.batch.bytes.tolist() for r in rows] == [[2400], [1600], [1600]]


def test_the_serving_layouts() -> None:
    (gemm,) = rows_of({"device": ["H100"], "m": [1], "n": [2], "k": [3], "gemm_dtype": ["bfloat16"],
                       "framework": ["VLLM"]})  # fmt: skip
    assert (gemm.batch.dtype, gemm.stacks, gemm.timed_by_events) == ("bf16", ["VLLM"], False)
    (attention,) = rows_of({"gpu": ["H100"], "batch_size": [2], "isl": [512], "num_heads": [8],
                            "num_key_value_heads": [2], "head_dim": [128]})  # fmt: skip
    assert attention.batch.dims["kv"].tolist() == [512]
    assert attention.batch.dims["causal"].tolist() == [1]


def test_the_layout_of_trace_kernels() -> None:
    (rows,) = rows_of({"gpu": ["V100"], "op": ["aten::mm"], "input_dims": ["[[16,32],[32,64]]"],
                       "input_types": ['["float","float"]'], "kernel": ["volta_sgemm"]})  # fmt: skip
    assert rows.batch.family == "gemm"
    assert rows.batch.dims["n"].tolist() == [64]


def test_an_unknown_layout_names_its_columns() -> None:
    with pytest.raises(InputError, match="bananas"):
        rows_of({"gpu": ["A100"], "bananas": [1]})


def test_a_table_without_gpus_is_refused() -> None:
    with pytest.raises(InputError, match="no column gpu"):
        rows_of({"op": ["bmm"], "B": [4], "M": [8], "N": [16], "K": [32]})


def test_words_where_numbers_belong_are_named() -> None:
    with pytest.raises(InputError, match="column K"):
        rows_of({"gpu": ["V100"], "op": ["bmm"], "B": [4], "M": [8], "N": [16], "K": ["deep"]})


def test_a_csv_comes_back_with_times_and_its_own_time_beside(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("gpu,op,m,n,k,time_us\nA100-PCIE-40G,gemm,1024,1024,1024,200.5\n")
    table = read_table(source)
    (row,) = csv.DictReader(io.StringIO(table_text(table, time_table(table))))
    assert row["measured_time_us"] == "200.5"
    assert float(row["time_us"]) > 0 and row["source"] == "learned"


def test_a_ragged_csv_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("gpu,op\nV100,bmm\nV100\n")
    with pytest.raises(InputError, match="line 3"):
        read_table(path)
