"""Files of JSON lines: one writer at a time, and what an interruption cut off is dropped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepsight.documents import JsonLines
from stepsight.errors import InputError

ADDING = """
import sys
from pathlib import Path
from stepsight.documents import JsonLines
lines = JsonLines(Path(sys.argv[1]))
lines.add([{"number": 1}])
print("added", flush=True)
sys.stdin.readline()
"""


def test_a_second_writer_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", ADDING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "added\n"
        with pytest.raises(InputError, match="another process is writing"):
            JsonLines(path).add([{"number": 2}])
        first.communicate("\n")
    JsonLines(path).add([{"number": 3}])
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 3]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_was_cut_off_is_dropped_and_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "lines.jsonl"
    JsonLines(path).add([{"a": 1}, {"b": 2}])
    path.write_bytes(path.read_bytes()[:-cut])
    left = JsonLines(path)
    assert all(isinstance(entry, dict) for _, entry in left.entries)
    left.add([{"c": 3}])
    assert [json.loads(line) for line in path.read_text().splitlines()][-1] == {"c": 3}
