import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepsight.commands.shard import command
from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.tables.plan import Plan
from stepsight.workload.files import load_workload

WORKLOAD = """
kind = "dlrm"
batch = 8192
[dense]
features = 64
bottom = [128, 64]
top = [128, 1]
interaction = "cat"
[[tables]]
count = 6
rows = 100_000
dim = 64
pooling = 40.0
[[tables]]
name = "odd"
rows = 1_000_000
dim = 128
pooling = 80.0
[parallel]
ranks = 4
"""


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "dlrm.toml"
    path.write_text(WORKLOAD)
    return str(path)


def run(*arguments: str):
    return CliRunner().invoke(command, [*arguments, "--plans", "200"])


def test_the_winner_and_the_runners_up_are_shown(workload):
    result = run(workload, "--platform", "4xV100-SXM2")
    assert result.exit_code == 0, result.output
    assert "best plan" in result.output
    assert "lower bound" in result.output


def test_json_and_the_plan_files(workload, tmp_path):
    out, torchrec, html = (tmp_path / name for name in ("plan.json", "torchrec.json", "page.html"))
    result = run(
        workload, "--platform", "4xV100-SXM2", "--json", "--out", str(out), "--torchrec", str(torchrec),
        "--html", str(html),
    )  # fmt: skip
    data = json.loads(result.stdout)
    assert data["ranks"] == 4
    assert data["candidates"][0]["name"] == data["winner"]
    assert Plan.read(out).ranks == 4
    assert set(json.loads(torchrec.read_text())) == {"plan"}
    assert html.read_text().startswith("<!DOCTYPE html>")


def test_tables_from_a_file_replace_the_workloads(workload, tmp_path):
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling\na,1000,64,5\nb,1000,64,5\n")
    data = json.loads(run(workload, "--platform", "4xV100-SXM2", "--tables", str(tables), "--json").stdout)
    assert data["tables"] == 2


def test_the_plan_of_tables_from_a_file_is_predicted_with_that_file(workload, tmp_path):
    tables, plan = tmp_path / "tables.csv", tmp_path / "plan.json"
    tables.write_text("name,rows,dim,pooling,features\na,100000,64,50,2\nb,1000,64,5,1\n")
    on = ("--tables", str(tables), "--json")
    found = json.loads(run(workload, "--platform", "4xV100-SXM2", *on, "--out", str(plan)).stdout)
    placed = predict(load_workload(workload, [f"parallel.sharding.file={plan}"], tables=tables),
                     load_platform("4xV100-SXM2"))  # fmt: skip
    assert placed.step_time_us == pytest.approx(found["step_time_us"], abs=0.01)


def test_a_stack_places_tables_of_a_file_as_it_places_its_own(tmp_path):
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,dim,pooling\na,40000000,128,3\nb,1000,128,1\nc,5000000,128,100\n")
    example = "examples/published/dlrm_dcnv2_mlperf.toml"
    placed = load_workload(example, ["parallel.ranks=4", "batch=32768"], tables=tables)
    assert placed.plan.sharder == "hugectr"


def test_a_platform_that_is_too_small(workload):
    result = run(workload, "--platform", "2xV100-SXM2")
    assert isinstance(result.exception, InputError)
    assert "needs 4" in str(result.exception)


def test_only_dlrms_are_sharded(tmp_path):
    path = tmp_path / "gpt.toml"
    path.write_text(
        'kind = "transformer"\nfamily = "gpt2"\nlayers = 1\nhidden = 64\nheads = 2\nffn = 128\nvocab = 100\n'
        "sequence = 16\nbatch_per_rank = 1\n"
    )
    result = run(str(path), "--platform", "1xV100-SXM2")
    assert isinstance(result.exception, InputError)
    assert "not a DLRM" in str(result.exception)


def test_a_plan_given_beside_is_checked_like_any_other(workload, tmp_path):
    plan = tmp_path / "mine.json"
    plan.write_text('{"ranks": 4, "shards": []}')
    result = run(workload, "--platform", "4xV100-SXM2", "--also", str(plan))
    assert isinstance(result.exception, InputError)
    assert "mine" in str(result.exception) and "lives nowhere" in str(result.exception)
    plan.write_text('{"ranks": 2, "shards": []}')
    assert "is for 2 ranks" in str(run(workload, "--platform", "4xV100-SXM2", "--also", str(plan)).exception)


def test_the_same_command_finds_the_same_plan(workload):
    found = [json.loads(run(workload, "--platform", "4xV100-SXM2", "--json").stdout) for _ in range(2)]
    assert found[0]["plan"] == found[1]["plan"]
    assert found[0]["plans_priced"] == found[1]["plans_priced"]


def test_the_plan_is_written_before_anything_is_printed(workload, tmp_path, monkeypatch):
    """As with ``| head``: whoever reads the output may stop early."""

    def gone(*_):
        raise BrokenPipeError

    monkeypatch.setattr("stepsight.report.sharding.show", gone)
    result = run(workload, "--platform", "4xV100-SXM2", "--out", str(tmp_path / "plan.json"))
    assert isinstance(result.exception, BrokenPipeError)
    assert Plan.from_json((tmp_path / "plan.json").read_text()).ranks == 4


def test_whole_tables_are_always_allowed(workload):
    result = run(workload, "--platform", "4xV100-SXM2", "--kind", "data_parallel", "--json")
    kinds = {shard["kind"] for shard in json.loads(result.stdout)["plan"]["shards"]}
    assert kinds <= {"table_wise", "data_parallel"}


def test_one_rank_is_no_ranks(workload):
    assert "7 tables over 1 rank of" in run(workload, "-p", "1xV100-SXM2", "--set", "parallel.ranks=1").output
