"""A few interruptions at random moments; ``scripts/fuzz --kills 40`` tries many, with torch, too."""

from __future__ import annotations

import sys

import pytest

from tests.fuzz.interruptions import COMMANDS, HOW, Command, interrupt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
QUICK = [c for c in COMMANDS if not c.needs]


@pytest.mark.parametrize("seed", range(len(HOW)), ids=HOW)
@pytest.mark.parametrize("command", QUICK, ids=[c.name for c in QUICK])
def test_what_is_left_is_old_or_new_and_no_process(command: Command, seed: int, tmp_path) -> None:
    interrupt(command, seed, tmp_path)
