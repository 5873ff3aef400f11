"""``--set``, ``--model``, a missing batch and ``--rows``: one meaning in every command that takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from stepsight.capturing.step import save_step
from stepsight.cli import cli
from stepsight.commands import options
from stepsight.commands.options import count, platform_assignments, split_assignments
from stepsight.commands.validate import TOPICS, Topics
from stepsight.errors import InputError
from stepsight.prediction.traced.whatif import QUESTIONS
from tests.lab.score.capture.tiny import step

ROOT = Path(__file__).parents[2]
DLRM = str(ROOT / "examples" / "dlrm.toml")
ON = ("-p", "4xV100-SXM2")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def answer(*arguments: str) -> dict[str, object]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "step.json"
    save_step(step(), path)
    return str(path)


def test_assignments_are_split_by_their_prefix() -> None:
    assert split_assignments(("batch=8", "platform.link.gbps=1")) == (["batch=8"], ["link.gbps=1"])
    with pytest.raises(InputError, match=r"a trace has no fields.*platform\.batch"):
        platform_assignments(("batch=8",), "a trace", "leave it out")


STEP_OF: dict[str, Callable[[dict[str, object]], object]] = {
    "predict": lambda found: found["step_time_us"],
    "shard": lambda found: json.dumps(found),
}


@pytest.mark.parametrize("arguments", [("predict", DLRM), ("shard", DLRM, "--plans", "5")])
def test_a_platform_field_changes_the_answer(arguments: tuple[str, ...]) -> None:
    asked = STEP_OF[arguments[0]]
    assert asked(answer(*arguments, *ON)) != asked(answer(*arguments, *ON, "--set", "platform.link.gbps=0.1"))


@pytest.mark.parametrize("command", ["tune", "sweep"])
def test_a_platform_field_changes_a_search(command: str) -> None:
    over = ("--over", "batch=4096")
    rows = [
        run(command, DLRM, *ON, *over, *more, "--json").stdout
        for more in ((), ("--set", "platform.link.gbps=0.1"))
    ]
    times = [json.loads(text) for text in rows]
    first = [t["top"][0] if command == "tune" else t[0] for t in times]
    assert first[1]["step_time_us"] > first[0]["step_time_us"]


def test_compare_sets_platform_fields_of_workloads_and_of_captured_steps(saved: str) -> None:
    slow = ("--set", "platform.host.speed=0.5")
    for arguments in (
        (DLRM, *ON, "--set-b", "batch=8192"),
        (saved, "-p", "1xH100-SXM", "--what-if", "no-host"),
    ):
        plain, changed = (answer("compare", *arguments, *more) for more in ((), slow))
        assert plain["before"] != changed["before"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "{step}", "-p", "1xH100-SXM"),
        ("compare", "{step}", "-p", "1xH100-SXM", "--what-if", "no-host"),
        ("predict", "--trace", "{step}"),
        ("compare", "--trace", "{step}", "--what-if", "no-host"),
        ("capture", "{step}", "-p", "1xH100-SXM"),
    ],
)
def test_what_has_no_fields_refuses_them(arguments: tuple[str, ...], saved: str) -> None:
    done = run(*(a.format(step=saved) for a in arguments), "--set", "batch=4")
    assert isinstance(done.exception, InputError)
    assert "has no fields" in str(done.exception) and "platform.batch" in str(done.exception)


@pytest.mark.parametrize("more", [("--platform-b", "1xH100-SXM"), ("--set-b", "batch=1"), ("other.toml",)])
def test_a_what_if_leaves_no_room_for_a_second_workload(more: tuple[str, ...], saved: str) -> None:
    assert run("compare", "--trace", saved, "--what-if", "no-host", *more).exit_code == 2


def test_models_are_named_the_same_way_everywhere() -> None:
    small = ("-p", "8xH100-SXM", "--set", "layers=2", "--set", "parallel.zero=1")
    by_option = answer("compare", "--model", "llama3-8b", *small, "--set-b", "training.precision=fp8")
    by_name = answer("compare", "llama3-8b", *small, "--set-b", "training.precision=fp8")
    assert by_option["speedup"] == by_name["speedup"]
    assert run("compare", "llama3-8b", "--model", "llama3-8b", *small).exit_code == 2


def test_help_names_what_a_workload_may_be_and_every_what_if() -> None:
    shown = run("predict", "--help").stdout
    assert all(word in shown for word in ("TOML", "config.json", "step.json", "llama3-8b"))
    shown = run("compare", "--help").stdout
    assert all(f"\n  {text.partition(':')[0]} " in shown for text, _ in QUESTIONS.values())


def test_a_model_without_a_batch_sees_one_sequence_per_replica_everywhere() -> None:
    small = ("--set", "layers=2", "--set", "parallel.zero=1")
    predicted = answer("predict", "llama3-8b", "-p", "8xH100-SXM", *small)
    assumed = predicted["assumed"]
    assert isinstance(assumed, dict) and assumed["batch"] == 8 and assumed["default_batch"]
    swept = json.loads(
        run("sweep", "llama3-8b", "-p", "8xH100-SXM", *small, "--over", "parallel.zero=1", "--json").stdout
    )
    assert swept[0]["step_time_us"] == pytest.approx(predicted["step_time_us"])
    tuned = run("tune", "llama3-8b", "-p", "8xH100-SXM", *small, "--over", "zero=1")
    assert "global batch 8" in tuned.stdout, tuned.exception


def test_an_assumed_batch_is_said_to_be_one() -> None:
    small = ("-p", "8xH100-SXM", "--set", "layers=2")
    assert "batch 8 (1 per rank, by default)" in run("predict", "llama3-8b", *small).stdout
    stated = run("predict", "llama3-8b", *small, "--set", "global_batch=16", "--set", "parallel.tensor=4")
    assert "batch 16 (8 per replica)" in " ".join(stated.stdout.split())


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_offers_rows_only_where_it_can_choose_them(topic: str) -> None:
    found = Topics().get_command(None, topic)  # type: ignore[arg-type]
    assert found is not None
    offers = any("--rows" in option.opts for option in found.params)
    assert offers == (topic in ("kernels", "embedding"))


def test_quick_refuses_options_that_it_would_ignore() -> None:
    for option in (("--rows", "all"), ("--data", ".")):
        assert run("validate", "quick", *option).exit_code == 2


def test_long_work_says_so_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with options.progress_bar("tune", quiet=False) as progress:
        assert progress is not None
        progress(1, 20, None)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(options, "FIRST_LINE_S", 0.0)
    with options.progress_bar("tune", quiet=False) as progress:
        assert progress is not None
        progress(1, 2000, None)
        progress(2, 2000, None)
    assert capsys.readouterr().err == "tune: 1 of 2,000 configurations\n"


def test_tables_of_a_file_belong_to_a_described_dlrm(tmp_path: Path, saved: str) -> None:
    tables = tmp_path / "tables.csv"
    tables.write_text("rows,dim,pooling\n1000,32,4\n")
    for job in (("llama3-8b",), ("--model", "llama3-8b"), (saved,), ("--trace", str(tmp_path))):
        refused = run("predict", *job, *ON, "--tables", str(tables))
        assert isinstance(refused.exception, InputError) or refused.exit_code == 2, refused.output


@pytest.mark.parametrize(
    ("text", "number"),
    [("15T", 15e12), ("1.5e9", 1.5e9), ("300b", 300e9), ("1_000", 1e3), ("2,000", 2e3), ("10K", 1e4)],
)
def test_a_count_is_plain_or_in_thousands_and_up(text: str, number: float) -> None:
    assert count(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "T", "many", "-5", "0", "nan", "inf", "3X"])
def test_a_count_is_a_positive_number(text: str) -> None:
    with pytest.raises(click.BadParameter):
        count(text)


def test_the_prefix_of_a_rank_has_its_number_alone() -> None:
    assert options.rank_prefixes("ip netns exec 'n{rank}'", 2) == [
        ["ip", "netns", "exec", f"n{r}"] for r in (0, 1)
    ]
    assert options.rank_prefixes("", 2) == []
    for wrong in ("ip {name}", "ip {}", "ip {", "ip 'n{rank}", "{rank.x}"):
        with pytest.raises(InputError, match="--rank-prefix"):
            options.rank_prefixes(wrong, 2)
