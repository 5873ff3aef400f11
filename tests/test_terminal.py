"""Printing: names are never markup, pipes get whole lines, and old terminals get plain letters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stepsight.terminal import listing, terminal

ROOT = Path(__file__).parents[1]


def test_names_are_never_markup(capsys) -> None:  # type: ignore[no-untyped-def]
    terminal().print("void kernel[bold]<int[4]>:smile:")
    assert capsys.readouterr().out == "void kernel[bold]<int[4]>:smile:\n"


def test_a_pipe_gets_whole_lines(capsys) -> None:  # type: ignore[no-untyped-def]
    terminal().print("x" * 300)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_terminal_without_unicode_is_served() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stepsight", "predict", "examples/dlrm.toml", "-p", "2xV100-SXM2"],
        capture_output=True, cwd=ROOT, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"us " in done.stdout
    assert b"?" not in done.stdout


def test_a_title_wider_than_its_table_is_one_line(capsys) -> None:  # type: ignore[no-untyped-def]
    title = "critical path of the rank the others wait for"
    terminal().print(listing(("part", "time"), [("host", "1 ms")], title=title))
    assert capsys.readouterr().out.splitlines()[0].rstrip() == title
