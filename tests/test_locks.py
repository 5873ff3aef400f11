# ruff: noqa: E501, PTH123
"""Two writers of one folder would mix their samples: the second is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from stepsight.documents import only_writer
from stepsight.errors import InputError


def test_a_second_writer_is_refused_and_the_folder_is_free_again(tmp_path):
    with only_writer(tmp_path), pytest.raises(InputError, match="another process"), only_writer(tmp_path):
        pass
    with only_writer(tmp_path):
        pass


def test_a_killed_writer_lets_go(tmp_path):
    code = f"import pathlib, time; from stepsight.documents import only_writer\nwith only_writer(pathlib.Path({str(tmp_path)!r})):\n print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    with only_writer(tmp_path):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="ranks follow their parent by a Linux call")
def test_a_stopped_rank_does_not_outlive_its_parent():
    pytest.importorskip("torch")
    code = "import time\nfrom stepsight.run.ranks import Ranks\nwith Ranks(1) as r:\n print(r.pids[0], flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    rank = int(parent.stdout.readline())
    os.kill(rank, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not _alive(rank):
            break
        time.sleep(0.1)
    assert not _alive(rank)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
