"""What a layer does depends on its own share of the job alone; its launches in plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepsight.program.job import Op
from stepsight.workload.files import load_workload, resolve
from stepsight.workload.llm import operators
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.layer import as_one_layer_sees, extra_launches, layer_work
from stepsight.workload.llm.workload import LanguageWorkload


def config(**parallel: Any) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 32,
        "training": {"framework": "torchtitan"}, "parallel": {"micro_batch": 1, "zero": 0, **parallel},
    }  # fmt: skip
    return read_language(document, "test")


@pytest.mark.parametrize(
    "other", [{"data": 8}, {"data": 4, "zero": 1}, {"data": 2, "schedule": "afab", "pipeline": 4}], ids=str
)
def test_replicas_and_stages_do_not_change_a_layer(other: dict[str, Any]) -> None:
    base = config(data=2, pipeline=other.get("pipeline", 1))
    assert layer_work(config(**other), experts=False) is layer_work(base, experts=False)


@pytest.mark.parametrize("other", [{"tensor": 2}, {"context": 2}, {"data": 8, "zero": 3}, {"micro_batch": 2}])
def test_what_a_layer_sees_keeps_layers_apart(other: dict[str, Any]) -> None:
    assert as_one_layer_sees(config(**other)) != as_one_layer_sees(config())


def test_a_layer_sees_all_that_it_saw_before() -> None:
    seen = as_one_layer_sees(config(data=4, pipeline=2, zero=1))
    assert as_one_layer_sees(seen) == seen


EXAMPLES = Path(__file__).parents[3] / "examples"


def plain(name: str, tmp_path: Path, *changes: str, ranks: int = 8) -> LanguageConfig:
    """An example as a language model of Hugging Face's transformers."""
    path = tmp_path / f"{name}.toml"
    text = (EXAMPLES / f"{name}.toml").read_text()
    path.write_text("\n".join(line for line in text.splitlines() if "fused_optimizer" not in line))
    workload = resolve(load_workload(path, ["training.recipe=hf-ddp", *changes]), ranks)
    assert isinstance(workload, LanguageWorkload)
    return workload.config


def launches(op: Op) -> int:
    return len(op.kernels) + (op.collective is not None)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_layer_launches_what_its_operators_do(name: str, precision: str, tmp_path: Path) -> None:
    """Within a sixth: casts around norms, and what lies before and after the layers, differ."""
    chosen = f"training.precision={precision}"
    attention = ["training.attention=eager"] if precision == "fp32" else []
    listed = resolve(
        load_workload(EXAMPLES / f"{name}.toml", [chosen, "training.framework=eager", *attention]), 8
    )
    ops = listed.job().programs[0].ops
    autocast = ["training.master_weights=false"] if precision == "bf16" else []
    layer = layer_work(plain(name, tmp_path, chosen, *attention, *autocast), experts=False)
    for phase, counted in (("forward", layer.forward), ("backward", layer.backward)):
        real = sum(launches(op) for op in ops if op.phase == phase) / listed.config.model.layers  # type: ignore[union-attr]
        assert counted.launches == pytest.approx(real, rel=1 / 6)


def test_a_compiler_or_a_framework_that_fuses_launches_its_kernels_only(tmp_path: Path) -> None:
    assert extra_launches(plain("gpt2", tmp_path, "training.compile=true")) == (0, 0)
    assert extra_launches(plain("gpt2", tmp_path, "training.recipe=megatron-2025")) == (0, 0)


def test_hooks_of_data_parallelism_are_launches(tmp_path: Path) -> None:
    alone, replicas = plain("llama", tmp_path, ranks=1), plain("llama", tmp_path)
    sharded = plain("llama", tmp_path, "parallel.zero=3")
    assert extra_launches(replicas)[1] - extra_launches(alone)[1] == 9  # tensors of a layer
    assert extra_launches(sharded)[0] > extra_launches(replicas)[0]


def test_gelu_by_its_tanh_formula_runs_operator_by_operator(tmp_path: Path) -> None:
    """Eight kernels forward for one; under autocast those behind the power read and write fp32."""

    def activation(*changes: str) -> list[tuple[str, str]]:
        layer = layer_work(plain("gpt2", tmp_path, "training.precision=bf16", *changes), experts=False)
        names = ("bias_gelu", "pow", "tanh")
        return sorted((k.operator, k.dtype) for k in layer.forward.kernels if k.operator in names)

    assert activation("training.compile=true") == [("bias_gelu", "bf16")]
    assert activation() == [("pow", "bf16"), ("tanh", "bf16")]
    assert activation("training.master_weights=false") == [("pow", "fp32"), ("tanh", "fp32")]


def test_under_autocast_the_stream_between_blocks_is_fp32(tmp_path: Path) -> None:
    def norms(*changes: str) -> set[str]:
        layer = layer_work(plain("llama", tmp_path, *changes), experts=False)
        return {k.dtype for k in layer.forward.kernels if k.family == "rms_norm"}

    assert norms() == {"bf16"}
    assert norms("training.master_weights=false") == {"fp32"}
    assert norms("training.master_weights=false", "training.recipe=megatron-2025") == {"bf16"}


def test_scaling_by_rows_reads_more_than_by_tensors_and_by_blocks_least() -> None:
    def read(scaling: str) -> float:
        both = operators.linear("fp8", "bf16", 4096, 4096, 4096, scaling=scaling)
        return sum(dict(k.dims)["read_bytes"] for k in both.forward if k.kind.variant == "cast_fp8")

    assert read("block") < read("current") < read("row")
