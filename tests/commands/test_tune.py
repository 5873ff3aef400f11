"""``stepsight tune`` and ``stepsight sweep`` as typed."""

import csv
import json

import pytest
from click.testing import CliRunner

from stepsight.commands.tune import command as tune
from stepsight.commands.tune import sweep
from stepsight.errors import InputError

MODEL = """
kind = "transformer"
family = "llama"
layers = 4
hidden = 512
heads = 8
ffn = 1408
vocab = 8000
sequence = 512
global_batch = 16
[training]
precision = "bf16"
framework = "megatron"
"""
DLRM = """
kind = "dlrm"
batch = 1024
[dense]
features = 16
bottom = [32, 16]
top = [32, 1]
interaction = "dot"
[[tables]]
count = 4
rows = 1000
dim = 16
pooling = 2.0
indices = "uniform"
[parallel]
ranks = 4
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text(MODEL)
    return str(path)


@pytest.fixture
def dlrm(tmp_path):
    path = tmp_path / "dlrm.toml"
    path.write_text(DLRM)
    return str(path)


def run(command, *arguments):
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_table_shows_the_best_and_the_flags(model):
    said = run(
        tune,
        model,
        "-p",
        "8xH100-SXM",
        "--over",
        "tp,zero,micro_batch=1,2",
        "--price",
        "2",
    )
    assert "valid configurations" in said
    assert "neighbours of the best (time per sample)" in said
    assert "--tensor-model-parallel-size" in said and "data_parallel_shard_degree" in said
    assert "per million tokens" in said


def test_json_holds_what_scripts_want(model):
    found = json.loads(run(tune, model, "-p", "8xH100-SXM", "--over", "tp,zero", "--json", "--top", "2"))
    assert len(found["top"]) == 2
    assert {"step_time_us", "low_us", "high_us", "memory_gb", "fit", "shares", "why"} <= set(found["top"][0])
    assert found["counts"]["priced"] >= 2 and set(found["flags"]) >= {"Megatron-LM", "torchtitan"}


def test_pages_are_written_whole(model, tmp_path):
    page = tmp_path / "tune.html"
    run(tune, model, "-p", "8xH100-SXM", "--over", "tp,zero", "--html", str(page))
    written = page.read_text()
    assert "</html>" in written and "Time and memory" in written


def test_a_sweep_writes_a_table_and_a_page(dlrm, tmp_path):
    table, page = tmp_path / "s.csv", tmp_path / "s.html"
    over = ["--over", "batch=1024,2048", "--over", "platform=4xV100-SXM2,8xA100-SXM4-40G"]
    said = run(sweep, dlrm, *over, "--csv", str(table), "--html", str(page), "--price", "3")
    assert "2048" in said and "8xA100-SXM4-40G" in said
    rows = list(csv.DictReader(table.open()))
    assert [r["batch"] for r in rows] == ["1024", "2048"] * 2
    assert float(rows[0]["cost_per_step"]) > 0
    assert "<svg" in page.read_text()


def test_the_price_may_stand_in_the_platform(dlrm, tmp_path):
    platform = tmp_path / "p.toml"
    platform.write_text('gpu = "V100-SXM2"\ngpus_per_node = 4\nprice_per_gpu_hour = 1.5\n')
    rows = json.loads(run(sweep, dlrm, "-p", str(platform), "--over", "batch=1024", "--json"))
    assert rows[0]["cost_per_step"] == pytest.approx(1.5 * 4 * rows[0]["step_time_us"] / 3.6e9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "a"], "--gpus"),
        (["--html", "/no/such/folder/x.html"], "folder"),
        (["--over", "tp=3"], "no valid configuration"),
        (["--over", "sharding"], "lacks"),
    ],
)
def test_mistakes_are_named(model, arguments, said):
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(tune, [model, "-p", "8xH100-SXM", *arguments], catch_exceptions=False)


def test_a_sweep_keeps_the_rows_that_are_refused():
    pipeline = ("--set", "parallel.pipeline=8", "--set", "parallel.virtual_stages=2")
    over = ("-p", "8xA100-SXM4-80G", *pipeline, "--over", "global_batch=8,12,16", "--json")
    rows = json.loads(run(sweep, "llama2-7b", *over))
    assert [row["status"] for row in rows] == ["priced", "illegal", "priced"]
    assert "no multiple" in rows[1]["reason"]


def test_a_sweep_over_names_without_values(dlrm):
    with pytest.raises(InputError, match="gives no values"):
        CliRunner().invoke(sweep, [dlrm, "-p", "4xV100-SXM2", "--over", "batch"], catch_exceptions=False)


@pytest.mark.parametrize("command", [tune, sweep], ids=["tune", "sweep"])
def test_a_model_is_given_once_by_place_or_by_option(command):
    for given in ([], ["llama3-8b", "--model", "llama3-8b"]):
        done = CliRunner().invoke(command, [*given, "-p", "8xH100-SXM", "--over", "zero=1,3"])
        assert done.exit_code == 2 and "give exactly one of MODEL" in done.output
    done = CliRunner().invoke(
        command, ["--model", "llama3-8b", "-p", "8xH100-SXM", "--over", "parallel.zero=1,3",
                  "--set", "global_batch=8", "--set", "parallel.ranks=8", "--json"]
    )  # fmt: skip
    assert done.exit_code == 0, done.output


def test_a_whole_run_has_its_days_and_its_cost(model):
    said = run(
        tune, model, "-p", "8xH100-SXM", "--over", "zero", "--tokens", "1T", "--price", "2", "--gpus", "4,8"
    )
    assert "cost/M tokens" in said and "days" in said and "GPU-hours" in said and " GPUs " in said


def test_the_table_says_its_order(model):
    said = run(tune, model, "-p", "8xH100-SXM", "--over", "zero", "--objective", "energy")
    assert "least energy first, all fit with at least 90 % (--min-fit)" in said and "J/sample" in said


def test_a_narrow_terminal_gets_the_reasons_below_the_table(model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    said = run(tune, model, "-p", "8xH100-SXM", "--over", "zero")
    assert "why (%" not in said and "90 % interval" not in said and "1  lost" in said


def test_a_sweep_names_the_micro_batch_that_memory_decides():
    said = run(sweep, "llama3-8b", "--over", "platform=8xH100-SXM,8xH200-SXM", "--set", "gbs=64")
    assert "mbs: chosen by what fits" in said
