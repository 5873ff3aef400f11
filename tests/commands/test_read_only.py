"""An installed package is never written to: its folder may be read-only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stepsight

ROOT = Path(__file__).parents[2]
PACKAGE = Path(stepsight.__file__).parent
WATCHED = """
import os, sys

def watch(event, arguments):
    path, mode = (str(arguments[0]), arguments[1]) if event == "open" else ("", None)
    writes = isinstance(mode, str) and set(mode) & set("wax+")
    changes = event in ("os.mkdir", "os.rename", "os.remove") and str(arguments[0]).startswith(PACKAGE)
    if changes or (writes and os.path.abspath(path).startswith(PACKAGE)):
        os.write(2, f"writes {path} ({event})".encode())
        os._exit(99)

PACKAGE = sys.argv[1]
sys.dont_write_bytecode = True
sys.addaudithook(watch)
from stepsight.cli import main
sys.argv = ["stepsight", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "examples/dlrm.toml", "-p", "2xV100-SXM2"],
        ["kernel", "gemm", "--gpu", "V100-SXM2-16G", "--dim", "m=64", "--dim", "n=64", "--dim", "k=64"],
        ["collective", "all_reduce", "--platform", "2xV100-SXM2", "--ranks", "2", "--bytes", "1e6"],
        ["platforms"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_command_writes_into_the_package(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(PACKAGE), *arguments], capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
