"""Standard output may be closed, full, narrow or read in part; what names hold never drives a terminal."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from stepsight.terminal import readable
from tests.trace.making import two_step_training

ROOT = Path(__file__).parents[2]
DLRM = ["predict", "examples/dlrm.toml", "-p", "2xV100-SXM2"]
COMMANDS = [DLRM, [*DLRM, "--json"], ["platforms"], ["--help"]]
IDS = ["table", "json", "platforms", "help"]
NASTY = "\x1b]0;title\x07\x1b[31mred\x9b1m\r" + "n" * 300


def shell(line: str, arguments: list[str], **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which ``RUN`` is the command."""
    command = [f"'{part}'" for part in (sys.executable, "-m", "stepsight", *arguments)]
    return subprocess.run(
        ["bash", "-c", "set -o pipefail; " + line.replace("RUN", " ".join(command))], capture_output=True,
        cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=IDS)
def test_a_reader_that_leaves_early_is_no_failure(arguments):
    done = shell("RUN | head -1", arguments)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", COMMANDS, ids=IDS)
def test_a_closed_output_leads_nowhere(arguments):
    done = shell("RUN >&-", arguments)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
@pytest.mark.parametrize("arguments", COMMANDS, ids=IDS)
def test_a_full_disk_under_the_output_is_one_line(arguments):
    done = shell("RUN > /dev/full", arguments)
    assert done.returncode == 2
    said = done.stderr.decode()
    assert said.startswith("stepsight: standard output: cannot be written (No space left on device)")
    assert said.count("\n") == 1


@pytest.mark.parametrize("columns", ["0", "-5", "x", "", "1", "20"])
def test_any_number_of_columns_is_served(columns):
    done = shell("RUN", DLRM, COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.strip()


def test_names_in_a_trace_never_drive_the_terminal(tmp_path):
    document = json.loads(two_step_training().content())
    for event in document["traceEvents"]:
        event["name"] = NASTY + event["name"] if event["cat"] == "cpu_op" else event["name"]
    document["deviceProperties"][0]["name"] = NASTY
    (tmp_path / "trace.json").write_text(json.dumps(document))
    for arguments in (["predict", "--trace", str(tmp_path)], ["inspect", str(tmp_path)]):
        done = shell("RUN", arguments, COLUMNS="100")
        assert done.returncode == 0, done.stderr
        assert not set("\x1b\x07\r\x9b") & set(done.stdout.decode())


def test_names_in_an_error_never_drive_the_terminal(tmp_path):
    (tmp_path / "work.toml").write_text('kind = "dlrm"\n"\\u001b[31mred" = 1\n')
    done = shell("RUN", ["predict", str(tmp_path / "work.toml"), "-p", "2xV100-SXM2"])
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr


def test_control_characters_are_spelled_out():
    assert readable("a\x1b[31m\tb\n\x9b\u202e") == "a\\x1b[31m\tb\n\\x9b\\u202e"


def test_a_disk_without_room_for_workers_is_one_line():
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    search = ["tune", "llama3-8b", "-p", "8xH100-SXM", "--over", "zero", "--workers", "2"]
    line = [sys.executable, "-m", "stepsight", *search]
    done = subprocess.run(line, capture_output=True, text=True, preexec_fn=full, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["stepsight: File too large; free some space, or set TMPDIR"]
