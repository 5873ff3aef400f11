"""A script runs without a GPU and becomes a step that can be predicted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from stepsight.capturing.ranks import Capturing
from stepsight.capturing.request import Assumptions, FakeGpu, Request
from stepsight.capturing.step import CapturedStep, decode, encode
from stepsight.cli import cli
from stepsight.errors import InputError, ScriptFailedError, StepsightError
from tests.capturing import scripts_for_tests as scripts

pytest.importorskip("torch")
A100 = FakeGpu("A100", (8, 0), 40 << 30, 108, 40 << 20)


def captured(tmp_path: Path, text: str, *, world: int = 1, **changes: object) -> CapturedStep:
    script = tmp_path / "train.py"
    script.write_text(text)
    request = Request(str(script), [], A100, world, 8)
    return Capturing(replace(request, **changes)).step("train.py")


def families(step: CapturedStep, program: int = 0) -> Counter[tuple[str, str]]:
    return Counter((k.family, k.dtype) for op in step.job.programs[program].ops for k in op.kernels)


def test_autocast_makes_half_precision_products_and_the_script_is_stopped(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.MIXED_PRECISION)
    kernels = families(step)
    assert kernels["gemm", "fp16"] == 5  # two layers forward, their weights and one input backward
    assert kernels["gemm", "fp32"] == 0
    assert sum(count for (family, _), count in kernels.items() if family == "copy_h2d") == 2
    assert not step.guessed
    assert step.samples.count == 32 and not step.samples.stated
    assert not (tmp_path / "model.pt").exists()
    names = {op.name for op in step.job.programs[0].ops}
    assert {"aten::linear", "Optimizer.step#AdamW.step"} <= names


def test_a_step_survives_its_file(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.MIXED_PRECISION)
    again = decode(encode(step), "step.json")
    plain = [(op.name, op.kernels, op.waits, op.blocks_host) for op in step.job.programs[0].ops]
    assert [(op.name, op.kernels, op.waits, op.blocks_host) for op in again.job.programs[0].ops] == plain
    assert again.memory == step.memory
    with pytest.raises(InputError, match="not a captured step"):
        decode(b"{", "step.json")


def test_ddp_reduces_its_buckets_and_rank_zero_alone_reads_the_loss(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.DATA_PARALLEL, world=4)
    assert step.job.program_of_rank == (0, 1, 1, 1)
    sent = [op.collective for op in step.job.programs[1].ops if op.collective]
    assert [(c.kind, c.bytes, c.group) for c in sent] == [("all_reduce", 4.0 * (512 * 512 + 512), "world")]
    assert [sum(op.blocks_host for op in p.ops) for p in step.job.programs] == [1, 0]


def test_sharded_and_tensor_parallel_modules_communicate_in_their_own_groups(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.SHARDED, world=4)
    sent = Counter(
        (op.collective.kind, op.collective.group) for op in step.job.programs[0].ops if op.collective
    )
    assert sent["reduce_scatter", "dp"] == 1
    assert sent["all_gather", "dp"] >= 1
    assert sent["all_reduce", "tp"] >= 1
    assert {g.ranks for g in step.job.groups["tp"]} == {(0, 1), (2, 3)}
    products = [k.dims for op in step.job.programs[0].ops for k in op.kernels if k.family == "gemm"]
    assert dict(products[0])["n"] == 128  # each of two ranks holds half of the columns
    ops = step.job.programs[0].ops
    reduced = [i for i, op in enumerate(ops) if op.collective and op.collective.group == "tp"]
    awaited = {wait.on for op in ops for wait in op.waits if wait.waiter == "compute"}
    assert set(reduced) <= awaited  # the next layer needs the sum


def test_ties_and_optimizers_survive_the_move_and_silu_has_its_kernel(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.TIED_AND_COMPILED)
    names = Counter(k.operator for op in step.job.programs[0].ops for k in op.kernels)
    assert names["silu_backward"] == 1
    assert any("torch.compile" in note for note in step.all_notes())


def test_of_several_optimizers_the_rarest_bounds_the_step(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.TWO_OPTIMIZERS)
    assert sum(op.name == "Optimizer.step#SGD.step" for op in step.job.programs[0].ops) == 4


def test_every_expert_gets_its_share_of_the_tokens(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.EXPERTS)
    products = [dict(k.dims) for op in step.job.programs[0].ops for k in op.kernels if k.operator == "linear"]
    assert [p["m"] for p in products] == [64, 32, 32, 32, 32]
    assert step.assumed and any("equal shares" in what for what in step.assumed)


def test_the_command_predicts_and_saves_what_predict_reads_back(tmp_path: Path) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "step.json"
    script.write_text(scripts.MIXED_PRECISION)
    run = CliRunner().invoke(
        cli, ["capture", str(script), "-p", "1xH100-SXM", "--json", "--save", str(saved)]
    )
    assert run.exit_code == 0, run.output
    made = json.loads(run.stdout)
    assert 0 < made["memory"]["peak_active_bytes"] <= made["memory"]["peak_reserved_bytes"]
    again = CliRunner().invoke(cli, ["predict", str(saved), "-p", "1xH100-SXM", "--json"])
    assert json.loads(again.stdout)["step_time_us"] == made["step_time_us"]


def test_a_recurrent_layer_is_one_call_of_cudnn(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.RECURRENT)
    assert not step.guessed
    layers, times = 2, 7
    recurring, over_all_times = times * layers, layers
    assert families(step)["gemm", "fp16"] == 2 * recurring + 4 * over_all_times  # both directions of the pass
    (forward,) = (op for op in step.job.programs[0].ops if op.name == "aten::_cudnn_rnn")
    assert len(forward.kernels) == 2 * recurring + over_all_times


def test_recurrent_products_in_fp32_are_tf32_as_cudnn_runs_them(tmp_path: Path) -> None:
    text = scripts.RECURRENT.replace("float16", "float32")
    assert families(captured(tmp_path, text))["gemm", "tf32"] == 36
    exact = f"import torch\ntorch.backends.cudnn.allow_tf32 = False\n{text}"
    assert families(captured(tmp_path, exact))["gemm", "fp32"] == 36


def test_an_output_that_a_metric_reads_again_counts_once(tmp_path: Path) -> None:
    assert captured(tmp_path, scripts.GRAPH).samples.count == 1000


def test_counting_samples_keeps_no_activation_alive(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.CHECKPOINTED)
    assert step.samples.count == 4096
    activation = 4096 * 1024 * 4
    weights = 8 * (1024 * 1024 + 1024) * 4
    assert step.memory[0].peak_active_bytes < 2 * weights + 13 * activation  # inputs of 8 blocks, and a few


def test_lists_as_indices_are_copied_to_the_gpu(tmp_path: Path) -> None:
    kernels = families(captured(tmp_path, scripts.INDEXED_BY_LISTS))
    assert sum(count for (family, _), count in kernels.items() if family == "copy_h2d") == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import torch\ntorch.ones(2).sum()", "never used a GPU"),
        ("import torch\ntorch.ones(2, device='cuda').sum()", "no optimizer step"),
        (
            "import torch\np = torch.nn.Parameter(torch.ones(2, device='cuda'))\n"
            "o = torch.optim.SGD([p])\np.sum().backward()\no.step()",
            "ended after 1 optimizer steps",
        ),
    ],
)
def test_a_script_without_a_step_is_told_why(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(StepsightError, match=problem):
        captured(tmp_path, text)


def test_a_script_that_fails_keeps_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(ScriptFailedError) as failed:
        captured(tmp_path, "import sys\nsys.exit(7)")
    assert failed.value.code == 7


def test_bad_input_is_refused_before_anything_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(9)")
    for extra, problem in (
        (["--assume", "luck=1"], "no assumption is called"),
        (["--assume", "mask_share=2"], "must lie between"),
        (["--world", "12", "-p", "2x8xA100-SXM4-40G"], "is not a multiple of 8"),
        (["--ranks", "9"], "ranks go from 0 to 7"),
        (["--save", str(tmp_path / "no" / "step.json")], "folder does not exist"),
    ):
        run = CliRunner().invoke(cli, ["capture", str(script), "-p", "8xA100-SXM4-40G", *extra])
        assert isinstance(run.exception, InputError), extra
        assert problem in str(run.exception)


def test_a_healthy_run_passes_its_checks_and_known_masks_select_what_they_select(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.CHECKED)
    rows = [
        dict(k.dims).get("m") for op in step.job.programs[0].ops for k in op.kernels if k.operator == "linear"
    ]
    assert 24 in rows  # the packed sequences, end to end
    assert step.assumed is not None
    assert not any("mask" in what for what in step.assumed)
    assert any("finite" in what for what in step.assumed)


def test_the_first_fsdp_and_synchronised_batch_norms_run_on_every_rank(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.FIRST_FSDP, world=2)
    sent = Counter(op.collective.kind for op in step.job.programs[-1].ops if op.collective)
    assert sent["reduce_scatter"] == 1
    assert sent["all_gather"] >= 2  # parameters, and the statistics of the batch norm


def test_in_inference_mode_dropout_launches_nothing_and_resizing_is_one_kernel(tmp_path: Path) -> None:
    text = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda().eval()
steps = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
for _ in range(5):
    with torch.inference_mode():
        model(torch.randn(4, 8, device="cuda"))
        torch.nn.functional.interpolate(torch.randn(2, 3, 8, 8, device="cuda"), size=6, mode="bicubic")
    steps.step()
"""
    kernels = families(captured(tmp_path, text))
    assert not any(family.startswith("copy") for family, _ in kernels)
    assert kernels["pool", "fp32"] == 1 and not kernels["gather", "fp32"]


def test_an_older_torch_loops_over_tensors_and_zeroes_gradients(tmp_path: Path) -> None:
    text = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    today, before = (
        families(captured(tmp_path, text)),
        families(captured(tmp_path, text, assume=["torch=1.12"])),
    )
    assert today["optimizer", "fp32"] == 1 and not before["optimizer", "fp32"]
    assert before["fill", "fp32"] > today["fill", "fp32"]
    with pytest.raises(InputError, match="is not a version"):
        Assumptions.read(["torch=old"])


def test_arrays_read_from_the_gpu_differ_so_that_a_script_can_cluster_or_sort_them(tmp_path: Path) -> None:
    text = """
import torch
from torch import nn
rows = torch.randn(300, 2, device="cuda").cpu()
kinds = [int(n) for n in (rows[:, 0] > 0).long().bincount()]
layers = nn.ModuleList(nn.Linear(8, n) for n in kinds).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for _ in range(4):
    sum(layer(torch.randn(4, 8, device="cuda")).sum() for layer in layers).backward()
    optimizer.step()
"""
    step = captured(tmp_path, text)
    kernels = [k for op in step.job.programs[0].ops for k in op.kernels]
    columns = [dict(k.dims)["n"] for k in kernels if k.operator == "linear"]
    assert len(columns) == 2 and sum(columns) == 300


MASKED = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 100}
model = LlamaForCausalLM(LlamaConfig(num_attention_heads=2, **sizes)).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
tokens = torch.randint(0, 100, (2, 64), device="cuda")
for _ in range(4):
    model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_mask_that_hides_nothing_leaves_flash_attention_to_hugging_face_models(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    names = {op.name for op in captured(tmp_path, MASKED).job.programs[0].ops}
    assert any("FlashAttentionBackward" in name for name in names)


BUCKETS = """
import torch
table, steps = torch.nn.Embedding(8, 4).cuda(), 3
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
for _ in range(steps):
    place = torch.arange(128, device="cuda")
    distance = (place[None] - place[:, None]).abs()
    far = (torch.log(distance.clamp(min=1).float()) / 0.7).long()
    table(torch.min(far, torch.full_like(far, 7))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_indices_computed_from_positions_are_known_to_their_gradient(tmp_path: Path) -> None:
    step = captured(tmp_path, BUCKETS, assume=["torch=2.5"])
    runs = [k.dim("run") for op in step.job.programs[0].ops for k in op.kernels if k.family == "scatter"]
    assert len(runs) == 1
    assert 128 * 128 / 8 < runs[0] < 128 * 128


def test_profilers_sparse_tensors_and_graph_marks_do_not_stop_a_script(tmp_path: Path) -> None:
    step = captured(tmp_path, scripts.ODD_HABITS)
    kernels = [k for op in step.job.programs[0].ops for k in op.kernels]
    added = next(k for k in kernels if k.operator == "index_add_")
    assert added.dim("elements") == 500  # what the sparse tensor holds, not the 1,048,576 of the weight
    assert {"sparse_mask", "_coalesce", "_to_dense"} <= {k.operator for k in kernels}
    assert [k.family for k in kernels].count("copy_d2h") == 1  # tolist()
    assert not step.guessed
