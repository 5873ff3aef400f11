"""``stepsight collective`` as users and scripts call it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from stepsight.commands.kernel import collective as command
from stepsight.commands.kernel import parse_bytes
from stepsight.errors import InputError

from .test_nccl_tests import HEAD, ROWS, TAIL


def call(*arguments: str):
    return CliRunner().invoke(command, list(arguments))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1MB", 1e6),
        ("256KiB", 262144),
        ("64M", 2**26),
        ("1.5GiB", 1.5 * 2**30),
        ("8 kb", 8000),
    ],
)
def test_sizes_are_read_with_their_units(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["1XB", "", "-1", "MB"])
def test_other_sizes_are_refused(text):
    with pytest.raises(InputError, match="not a size"):
        parse_bytes(text)


def test_json_of_one_size_is_one_object():
    result = call("all_reduce", "--platform", "8xA100-SXM4-40G", "--ranks", "4", "--bytes", "64MiB", "--json")
    answer = json.loads(result.output)
    assert answer["ranks"] == 4 and answer["bytes"] == 2**26
    assert 0 < answer["low_us"] < answer["time_us"] < answer["high_us"]
    assert answer["source"] == "measured" and "interpolated" in answer["basis"]


def test_several_sizes_come_as_a_list_in_order():
    answers = json.loads(
        call("all_to_all", "-p", "4xV100-SXM2", "-b", "1KB,1MB", "-b", "1GB", "--json").output
    )
    assert [a["bytes"] for a in answers] == [1e3, 1e6, 1e9]


def test_the_table_explains_what_was_carried_over():
    result = call("all_reduce", "-p", "8xL4", "-b", "64MB")
    assert result.exit_code == 0 and "usual PCIe server" in result.output


def test_a_group_larger_than_the_platform_is_an_error():
    result = call("all_reduce", "-p", "4xV100-SXM2", "-n", "8", "-b", "1MB")
    assert isinstance(result.exception, InputError) and "has 4 GPUs" in str(result.exception)


def test_an_unknown_collective_is_an_error():
    result = call("all_shuffle", "-p", "4xV100-SXM2", "-b", "1MB")
    assert isinstance(result.exception, InputError) and "all_reduce" in str(result.exception)


def test_an_imported_benchmark_answers_from_then_on(tmp_path):
    source, mine = tmp_path / "all_reduce.txt", str(tmp_path / "mine")
    source.write_text(HEAD + ROWS + TAIL)
    imported = call("--import", str(source), "--platform", mine)
    assert imported.exit_code == 0 and "4 times of all_reduce over 4 GPUs" in imported.output
    answer = json.loads(call("all_reduce", "--platform", mine, "--bytes", "4MiB", "--json").output)
    assert answer["time_us"] == pytest.approx(59)


def test_an_import_says_what_it_left_out(tmp_path):
    source = tmp_path / "all_reduce.txt"
    source.write_text(HEAD + ROWS)
    result = call("--import", str(source), "--platform", str(tmp_path / "mine"), "--json")
    assert "summary" in json.loads(result.output)["skipped"][0]
