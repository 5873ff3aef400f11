"""What cannot be captured is refused in one line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stepsight.capturing import ranks
from stepsight.capturing.request import explained
from stepsight.errors import StepsightError
from tests.capturing import scripts_for_tests as scripts
from tests.capturing.test_capture import captured

pytest.importorskip("torch")

LOOP = """
for _ in range(6):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HEAD = "import torch\nfrom torch import nn\n"
TAIL = "\noptimizer = torch.optim.SGD(model.parameters())\n" + LOOP


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            "model = nn.DataParallel(nn.Linear(64, 64).cuda())",
            "nn.DataParallel: one process uses",
        ),
        ("model = nn.Linear(64, 64).to('cuda:1')", "cuda:0, cuda:1"),
        ("model = nn.Linear(64, 64, device=torch.device('cuda', 3))", "cuda:0, cuda:3"),
    ],
)
def test_several_gpus_in_one_process_are_refused(tmp_path: Path, model: str, problem: str) -> None:
    with pytest.raises(StepsightError, match=problem):
        captured(tmp_path, HEAD + model + TAIL, world=4)


def test_one_process_a_gpu_may_name_its_own(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.DATA_PARALLEL, world=2)
    assert step.ranks == 2


def test_extensions_are_refused_before_they_are_built(tmp_path: Path) -> None:
    build = "from torch.utils.cpp_extension import load\nmodel = load('mine', sources=['mine.cu'])\n"
    with pytest.raises(StepsightError, match="extension 'mine' brings GPU kernels of its own"):
        captured(tmp_path, build)


def test_a_kernel_that_needs_values_is_named() -> None:
    class DataDependentOutputException(Exception):  # noqa: N818 (torch's name)
        pass

    said = explained(DataDependentOutputException("mine::op.default"))
    assert "mine::op" in said and "stepsight predict --trace" in said
    assert "flash_attn" in explained(ModuleNotFoundError("no", name="flash_attn.layers"))
    flex = "There was no rule registered for HigherOrderOperator flex_attention and mode"
    assert explained(NotImplementedError(flex)).startswith("flex_attention: ")
    assert explained(ValueError("a script's own mistake")) == ""


def test_where_the_fake_gpu_cannot_be_set_up_a_trace_is_asked_for(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text('{"stage": "starting"}')
    with pytest.raises(StepsightError, match=r"SIGSEGV.*record a trace"):
        ranks.answer_of(answer, -11)


ON_THE_CPU = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os; os._exit(3)", r"os\._exit\(3\)"),
        ("import sys; sys.exit(0)", r"sys\.exit\(0\) after 0 optimizer steps; 3 are needed"),
        ("import sys; sys.exit('no data')", "exit code 1: no data"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        (ON_THE_CPU, "put nothing on the GPU"),
    ],
)
def test_a_script_that_ends_early_is_named_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(StepsightError, match=problem) as raised:
        captured(tmp_path, text)
    assert "\n" not in str(raised.value)


def test_a_mistake_of_the_script_shows_its_own_frames_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = "model = nn.Sequential(nn.Linear(64, 64), nn.Linear(32, 8)).cuda()"
    with pytest.raises(StepsightError, match="must have same reduction dim"):
        captured(tmp_path, HEAD + model + TAIL)
    said = capfd.readouterr().err.splitlines()
    assert sum(line.startswith('  File "') for line in said) == 1
    assert len(said) < 10


def test_a_killed_script_may_have_filled_the_memory(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text('{"stage": "running"}')
    with pytest.raises(StepsightError, match=r"ended by SIGKILL .* where memory is full"):
        ranks.answer_of(answer, -9)


def test_children_of_a_script_end_with_it(tmp_path: Path) -> None:
    text = f"""
import os, subprocess
child = subprocess.Popen(["sleep", "300"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
os._exit(1)
"""
    with pytest.raises(StepsightError):
        captured(tmp_path, text)
    child = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    for _ in range(100):  # a killed process is there until it has been scheduled once more
        if not child.exists() or child.read_text().split()[2] in "ZX":
            return
        time.sleep(0.1)
    pytest.fail("the script's child is still running")
