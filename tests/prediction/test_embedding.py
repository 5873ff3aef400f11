"""What each table and each rank of a recommender model costs."""

from __future__ import annotations

import pytest

from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import load_workload


@pytest.fixture(scope="module")
def prediction():
    return predict(load_workload("examples/dlrm_torchrec.toml"), load_platform("8xA100-SXM4-80G"))


def test_tables_come_hottest_first_and_add_up(prediction):
    figures = prediction.embedding
    times = [table.time_us for table in figures.tables]
    assert times == sorted(times, reverse=True) and len(times) == 26
    assert sum(t.lookups for t in figures.tables) == pytest.approx(sum(r.lookups for r in figures.ranks))
    assert sum(t.exchanged_bytes for t in figures.tables) == sum(r.sent_bytes for r in figures.ranks)


def test_a_table_names_its_reuse_and_its_bytes(prediction):
    hot = prediction.embedding.tables[0]
    assert hot.lookups == 16384 * 24 and hot.reuse == pytest.approx(hot.lookups / hot.unique_rows)
    assert hot.unique_rows * 512 < hot.memory_bytes < hot.cache_bytes


def test_json_and_page_hold_them(prediction):
    document = prediction.to_dict()["embedding"]
    assert document["tables"][0]["name"] == "t0_0" and document["ranks"][7]["rank"] == 7
    page = prediction.to_html()
    assert "data-sortable" in page and "distinct rows" in page and "Lookups of each rank" in page


@pytest.mark.parametrize("example", ["dlrm_nvidia_large", "published/dlrm_dcnv2_mlperf"])
def test_every_stack_has_them(example):
    found = predict(load_workload(f"examples/{example}.toml"), load_platform("8xH100-SXM"))
    assert found.embedding is not None and len(found.embedding.tables) == 26
