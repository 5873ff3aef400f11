"""Bad input, one of each kind: always an error that names the place and the fix, never a traceback."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stepsight.collectives.benchmark_files import read_nccl_tests, read_timings_csv
from stepsight.errors import InputError, StepsightError
from stepsight.inputs import compiled
from stepsight.platform.load import load_platform
from stepsight.prediction.kernel_times import read_table, time_table
from stepsight.records import read_toml
from stepsight.tables.files import read_tables
from stepsight.tables.indices.index_files import open_index_file
from stepsight.workload.files import load_workload

ROOT = Path(__file__).parents[1]
DLRM, GPT2 = ROOT / "examples" / "dlrm.toml", ROOT / "examples" / "gpt2.toml"


@pytest.mark.parametrize(
    "assignment",
    ["batch=nan", "batch=inf", "batch=1e30", "tables.0=5", "tables.0.pooling=nan", "tables.0.rows=1e18",
     "tables.0.count=1000000000", "dense.features=1e15", "parallel.ranks=1e9", "tables.0.dim=-1",
     "tables.0.indices=[[[]]]", "training.precision=nan", "dense=7", "tables=7", "dense.bottom=[nan]"],
)  # fmt: skip
def test_a_dlrm_field_out_of_range_is_named(assignment):
    with pytest.raises(StepsightError, match=r"dlrm\.toml|table"):
        load_workload(DLRM, [assignment])


@pytest.mark.parametrize(
    "assignment", ["layers=10000000", "vocab=1e15", "hidden=nan", "heads=inf", "batch_per_rank=0"]
)
def test_a_transformer_field_out_of_range_is_named(assignment):
    with pytest.raises(InputError, match=rf"gpt2\.toml.*{assignment.split('=')[0]}"):
        load_workload(GPT2, [assignment])


@pytest.mark.parametrize(
    "assignment",
    ["link=5", "link.gbps=0", "link.gbps=-5", "link.gbps=nan", "link.latency_us=-1", "host.speed=-1",
     "host.speed=0", "gpu.memory_gbps=nan", "gpu.sms=0", "gpu.peak_tflops.fp32=-1", "nodes=1000000000",
     "contention.compute_under_comm=-2"],
)  # fmt: skip
def test_hardware_that_cannot_be_is_refused(assignment):
    with pytest.raises(InputError):
        load_platform("4xV100-SXM2", [assignment])


def test_a_gpu_file_reports_everything_that_is_wrong_at_once(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text('gpu = "V100-SXM2-16G"\ngpus_per_node = 4\n[link]\ngbps = 0\n[host]\nspeed = -1\n')
    with pytest.raises(InputError, match=r"link\.gbps.*host\.speed"):
        load_platform(file)


@pytest.mark.parametrize("text", ["x=" + "[" * 5000, "x=" + "9" * 5000, "\x00", "= 1", "[a\n"])
def test_toml_that_is_no_toml_is_an_input_error(tmp_path, text):
    path = tmp_path / "w.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"w\.toml"):
        read_toml(path)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00bad", b"gpu,op\n", b"gpu,op,m\n" + b"x" * 200_000 + b",a,b\n", b""]
)
def test_a_kernel_table_that_is_no_table_is_named(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"rows\.csv"):
        time_table(read_table(path), str(path))


def test_a_size_that_is_no_number_has_no_time():
    with pytest.raises(InputError, match="column m"):
        time_table(
            {"gpu": ["V100"], "family": ["gemm"], "dtype": ["fp32"], "m": ["nan"], "n": ["1"], "k": ["1"]},
            "rows.csv",
        )


def test_a_table_file_with_null_pooling_or_extra_columns_is_named(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('[{"num_embeddings": 10, "embedding_dim": 4, "pooling_factor": null}]')
    with pytest.raises(InputError, match="pooling_factor"):
        read_tables(path)
    path = tmp_path / "t.csv"
    path.write_text("rows,dim,pooling\n10,8,1,7,9\n")
    with pytest.raises(InputError, match="line 2"):
        read_tables(path)


@pytest.mark.parametrize("shape", [(0,), (), (2, 2, 2)])
def test_indices_of_an_odd_shape_are_refused(tmp_path, shape):
    path = tmp_path / f"i{len(shape)}.npz"
    np.savez(path, indices=np.zeros(shape, dtype=np.int64))
    with pytest.raises(InputError, match=r"\.npz"):
        open_index_file(str(path))


def test_bags_of_negative_length_are_refused(tmp_path):
    path = tmp_path / "negative.npz"
    np.savez(path, indices=np.zeros(2, dtype=np.int64), lengths=np.array([[3, -1]]))
    with pytest.raises(InputError, match="a bag of -1"):
        open_index_file(str(path))


def test_text_that_is_not_gzip_is_named(tmp_path):
    path = tmp_path / "i.csv.gz"
    path.write_bytes(b"1,2,3\n")
    with pytest.raises(InputError, match=r"i\.csv\.gz"):
        open_index_file(str(path))


def test_a_zip_that_expands_without_bound_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSIGHT_LIMIT_EXPANDED_BYTES", str(1 << 20))
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("indices.npy", bytes(1 << 22))
    with pytest.raises(InputError, match="unpacks to more than"):
        open_index_file(str(path))


def test_an_empty_archive_is_named(tmp_path):
    path = tmp_path / "e.pt.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(InputError, match=r"e\.pt\.gz"):
        open_index_file(str(path))


def test_a_time_with_two_points_is_skipped_and_said(tmp_path):
    rank = "#  Rank  {0} Group  0 Pid {0} on h device {0} [0x0] A\n"
    head = "# nccl-tests all_reduce_perf\n" + rank.format(0) + rank.format(1)
    path = tmp_path / "all_reduce.txt"
    path.write_text(head + "1024 256 float sum -1 1.2.3 0.10 0.10 0 1.2.3 0.10 0.10 0\n")
    with pytest.raises(InputError):
        read_nccl_tests(path)


def test_collective_times_without_rows_or_columns_are_named(tmp_path):
    path = tmp_path / "c.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_timings_csv(path)
    path.write_text("kind,ranks,bytes,time_us\nall_reduce,nan,8,1\n")
    with pytest.raises(InputError, match="line 2"):
        read_timings_csv(path)


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(InputError, match="the pattern"):
        compiled("(", "the pattern")


@pytest.mark.parametrize("pattern", ["dropout", "aten::(add|mul)_?", r"nccl:\w+", "a{1,3}b+"])
def test_a_usual_pattern_is_taken(pattern):
    assert compiled(pattern, "the pattern").pattern == pattern


def test_a_limit_can_be_raised(monkeypatch):
    monkeypatch.setenv("STEPSIGHT_LIMIT_LAYERS", "1")
    with pytest.raises(InputError, match="STEPSIGHT_LIMIT_LAYERS"):
        load_workload(GPT2)
