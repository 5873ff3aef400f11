"""What cannot be captured is refused in one line; a machine without the device guard uses the fallback."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight.capture import ranks
from stepsight.capture.ranks import UnavailableError
from stepsight.capture.request import Answer, Request
from stepsight.capture.unsupported import explained
from stepsight.errors import StepsightError
from tests.capture import scripts_for_tests as scripts
from tests.capture.test_capture import captured, families

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


def test_a_kernel_that_needs_values_is_named() -> None:
    class DataDependentOutputException(Exception):  # noqa: N818 (torch's name)
        pass

    said = explained(DataDependentOutputException("mine::op.default"))
    assert "mine::op" in said and "stepsight predict --trace" in said
    assert "flash_attn" in explained(ModuleNotFoundError("no", name="flash_attn.layers"))
    flex = "There was no rule registered for HigherOrderOperator flex_attention and mode"
    assert explained(NotImplementedError(flex)).startswith("flex_attention: ")
    assert explained(ValueError("a script's own mistake")) == ""


def test_without_a_device_guard_the_step_is_the_same(tmp_path: Path) -> None:
    script = HEAD + "model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()" + TAIL
    guarded, told = captured(tmp_path, script), captured(tmp_path, script, guard=False)
    assert families(guarded) == families(told)
    assert any("without a device guard" in note for note in told.notes)
    assert told.memory == guarded.memory


def test_without_a_device_guard_autocast_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StepsightError, match="autocast does nothing without it"):
        captured(tmp_path, scripts.MIXED_PRECISION, guard=False)


def test_where_neither_works_a_trace_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def fails(request: Request, rank: int) -> Answer:
        tried.append(request.guard)
        raise UnavailableError("no guard here; record a trace on a GPU instead")

    monkeypatch.setattr(ranks, "_captured_in_process", fails)
    with pytest.raises(UnavailableError, match="record a trace"):
        captured(tmp_path, scripts.MIXED_PRECISION)
    assert tried == [True, False]


def test_a_torch_without_what_is_needed_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepsight.capture import probes

    assert probes.missing() == []
    monkeypatch.setattr(probes, "NEEDED", ("Tag.pointwise", "Tag.nowhere"))
    assert probes.missing() == ["torch.Tag.nowhere"]
