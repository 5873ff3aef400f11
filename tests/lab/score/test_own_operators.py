"""A measured pass may not take much longer than its operators one by one."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from lab.score.e2e.own_operators import FILE, Passes, contradicted, key_of, operator_sums

ROW = {
    "device": "NVIDIA_L4", "model": "bert", "mode": "train", "seqlen": "512", "batch": "2", "option": "",
    "fw_ms": "4.3", "bw_ms": "8.0",
}  # fmt: skip


@pytest.fixture
def sums(tmp_path: Path) -> dict[tuple[str, ...], Passes]:
    """An embedding, a layer of two modules with a function between them, a head."""
    targets = ["embeddings", "encoder.layer.0.query", "matmul", "encoder.layer.0.output", "head"]
    n = len(targets)
    columns = {
        "device": ["NVIDIA_L4"] * n, "model": ["bert"] * n, "mode": ["train"] * n, "seqlen": [512] * n,
        "batch": [2] * n, "option": [""] * n, "target": targets, "forward_us": [100.0] * n,
        "backward_us": [200.0] * n, "accumulate_us": [10.0] * n,
    }  # fmt: skip
    (tmp_path / "kernels").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "kernels" / FILE)
    return operator_sums(tmp_path, {"bert": 12})


def test_what_a_layer_runs_counts_once_a_layer(sums):
    own = sums[key_of(ROW)]
    assert own.forward_ms == pytest.approx((2 + 12 * 3) * 0.1)
    assert own.backward_ms == pytest.approx((2 + 12 * 3) * 0.21)


def test_a_pass_much_longer_than_its_operators_contradicts_them(sums):
    assert not contradicted(ROW, sums)
    assert contradicted({**ROW, "fw_ms": "6.0"}, sums)


def test_a_shorter_pass_or_one_without_operators_does_not(sums):
    assert not contradicted({**ROW, "fw_ms": "2.0"}, sums)
    assert not contradicted({**ROW, "device": "Tesla_T4", "fw_ms": "60.0"}, sums)


def test_without_the_file_nothing_is_contradicted(tmp_path: Path):
    assert operator_sums(tmp_path, {"bert": 12}) == {}
