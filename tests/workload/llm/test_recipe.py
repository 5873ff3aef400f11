"""Recipes: defaults of training stacks as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepsight.cli import cli
from stepsight.errors import InputError
from stepsight.hardware.gpus import gpu_catalogue
from stepsight.overheads.frameworks import profiles
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import load_model, load_workload, parse_workload, resolve
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.emission import parameter_messages
from stepsight.workload.llm.pieces import head_work
from stepsight.workload.llm.recipe import families, recipe_of, recipes

SIZES = {
    "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
    "vocab": 8192, "sequence": 1024,
}  # fmt: skip


def config(training: dict[str, Any] | None = None, **parallel: Any) -> LanguageConfig:
    found = parse_workload({**SIZES, "training": training or {}, "parallel": parallel}, "test")
    assert isinstance(found.config, LanguageConfig)
    return found.config


@pytest.mark.parametrize("name", list(recipes()))
def test_a_recipe_states_version_date_source_and_host_work(name: str) -> None:
    recipe = recipe_of(name)
    assert recipe.version and recipe.date and recipe.source
    assert recipe.framework.host_profile in profiles()
    assert {"attention", "fused_norm", "gradients", "recompute"} <= set(recipe.training)
    assert {"zero", "overlap_gradients"} <= set(recipe.parallel)


def test_a_framework_is_its_newest_recipe() -> None:
    assert families()["megatron"].name == "megatron-2025"
    assert config({"framework": "hf"}, data=2).recipe == "hf-fsdp"


def test_megatron_shares_the_optimizer_and_splits_activations() -> None:
    c = config(data=8, tensor=4)
    assert (c.recipe, c.layout.zero, c.layout.sequence_parallel) == ("megatron-2025", 1, True)
    assert config(data=1, tensor=1).layout.sequence_parallel is False


def test_buckets_grow_with_the_replicas() -> None:
    """max(40 M, 1 M × data-parallel size) parameters in fp32."""
    assert config(data=8).layout.bucket_mb == 160
    assert config(data=128).layout.bucket_mb == 512
    assert config({"recipe": "megatron-2023"}, data=128).layout.bucket_mb == 160


def test_the_attention_kernel_depends_on_the_gpu() -> None:
    document = {**SIZES, "parallel": {"data": 8}}

    def on(gpu: str, **training: str) -> str:
        found = resolve(parse_workload({**document, "training": training}, "t"), 8, gpu_catalogue()[gpu].gpu)
        return found.config.training.attention  # type: ignore[union-attr]

    assert on("H100-SXM-80G") == "cudnn"
    assert on("A100-SXM4-80G") == "flash2"
    assert on("H100-SXM-80G", attention="flash3") == "flash3"


@pytest.mark.parametrize(
    ("zero", "recipe"), [(0, "megatron-2025"), (1, "megatron-2025"), (3, "torchtitan-2025")]
)
def test_the_default_is_the_same_however_the_model_is_named(zero: int, recipe: str) -> None:
    named = load_model("llama3-8b", [f"parallel.zero={zero}", "parallel.data=8"]).config
    filed = parse_workload({"model": "llama3-8b", "parallel": {"zero": zero, "data": 8}}, "a.toml").config
    assert named.recipe == filed.recipe == recipe  # type: ignore[union-attr]


def test_what_differs_from_the_recipe_is_listed() -> None:
    assert config({"recompute": "full"}, data=8, zero=0).differs == (
        "training.recompute=full",
        "parallel.zero=0",
    )
    assert config({"recompute": "none"}, data=8, zero=1).differs == ()


def test_a_recipe_without_a_profile_says_whose_it_takes() -> None:
    assert recipe_of("torchtitan").borrows == "compiled"
    assert recipe_of("nemo").borrows == ""


def test_a_recipe_has_other_settings_for_some_models_and_gpus() -> None:
    """Modules that NeMo runs again for DeepSeek-V3, more of them on H100; what a description states stays."""
    parallel = {"data": 64, "expert": 64, "pipeline": 4, "micro_batch": 1}

    def on(gpu: str, recipe: str = "nemo-2025", **training: Any) -> LanguageConfig:
        document = {"model": "deepseek-v3", "parallel": parallel, "training": {"recipe": recipe, **training}}
        found = resolve(parse_workload(document, "t"), 256, gpu_catalogue()[gpu].gpu).config
        assert isinstance(found, LanguageConfig)
        return found

    assert on("GB200-186G").training.recompute_modules == ("mla_up_proj",)
    assert on("H100-SXM-80G").training.recompute_modules == ("mla_up_proj", "mlp")
    assert on("H100-SXM-80G", recompute="full").training.recompute == "full"
    assert on("GB200-186G").layout.expert_dispatch == "once"
    graphs = on("GB200-186G", "nemo-2026", precision="fp8", fp8_scaling="block")
    assert graphs.training.cuda_graphs and graphs.layout.expert_overlap == "experts"
    assert not on("GB200-186G", "nemo-2026").training.cuda_graphs


def test_layers_run_again_where_a_board_is_short_of_memory() -> None:
    document = {
        "model": "llama2-70b", "sequence": 8192, "parallel": {"data": 8},
        "training": {"recipe": "mlperf-amd-2025", "adapters": True},
    }  # fmt: skip

    def on(gpu: str) -> LanguageConfig:
        return resolve(parse_workload(document, "t"), 8, gpu_catalogue()[gpu].gpu).config  # type: ignore

    assert on("MI300X").training.recompute_layers == 21
    assert on("MI325X").training.recompute == "none" and on("MI325X").training.frozen_weights == "fp8"


def test_experts_keep_gathered_parameters_and_dense_models_do_not() -> None:
    def kept(model: str) -> bool:
        training = {"recipe": "automodel-2025"}
        found = parse_workload({"model": model, "parallel": {"data": 8}, "training": training}, "t").config
        return not found.layout.reshard  # type: ignore[union-attr]

    assert (kept("llama3-8b"), kept("qwen3-30b-a3b")) == (False, True)


def test_no_exception_for_a_gpu_may_change_what_no_gpu_decides(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('like = "nemo-2025"\n[[where]]\ngpus = ["H100"]\ntraining = { gradients = "fp32" }\n')
    with pytest.raises(InputError, match="no GPU decides this"):
        recipe_of(str(own))


def test_a_recipe_of_ones_own_is_a_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('like = "nemo-2025"\n[parallel]\nasync_tensor = false\n')
    c = config({"recipe": str(own)}, data=2, tensor=2)
    assert (c.layout.async_tensor, c.layout.zero, c.framework.name) == (False, 1, "megatron")
    own.write_text('like = "nemo-2025"\n[parallel]\nasync = false\n')
    with pytest.raises(InputError, match=r"mine.toml: .parallel.: async: unknown field"):
        recipe_of(str(own))


@pytest.mark.parametrize("option", ["--recipe={}", "--set=recipe={}"])
def test_a_file_is_a_recipe_by_its_path(tmp_path: Path, option: str) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('like = "torchtitan-2025"\n[training]\nrecompute = "full"\n')
    asked = ["predict", "llama3.2-1b", "-p", "8xH100", "--set", "layers=2", option.format(own)]
    said = CliRunner().invoke(cli, asked)
    assert said.exit_code == 0 and "full recomputation" in said.output
    assert f"recipe {own}" in CliRunner().invoke(cli, [*asked, "--explain"]).output


def test_a_copy_of_a_recipe_may_keep_its_name(tmp_path: Path) -> None:
    own = tmp_path / "nemo-2025.toml"
    own.write_text('like = "nemo-2025"\n[parallel]\nasync_tensor = false\n')
    assert config({"recipe": str(own)}, data=2, tensor=2).layout.async_tensor is False


def test_what_happens_anyway_may_be_stated() -> None:
    assert config({"compile": False}, zero=1, schedule="1f1b", virtual_stages=1).layout.zero == 0


@pytest.mark.parametrize("where", ["top", "parallel"])
def test_short_names_are_fields(where: str) -> None:
    short = {"tp": 2, "pp": 2, "dp": 2, "mbs": 1, "zero": 1}
    document = {**SIZES, "gbs": 8, **(short if where == "top" else {"parallel": short})}
    document["seq"] = document.pop("sequence")
    layout = parse_workload(document, "t").config.layout  # type: ignore[union-attr]
    assert (layout.tensor, layout.pipeline, layout.data, layout.micro_batches) == (2, 2, 2, 4)


def test_a_field_in_the_wrong_section_is_named_with_its_path() -> None:
    with pytest.raises(InputError, match=r"did you mean parallel\.sequence_parallel"):
        parse_workload({**SIZES, "sequence_parallel": True}, "t")


def test_a_short_name_and_its_field_cannot_differ() -> None:
    with pytest.raises(InputError, match=r"tp: and parallel\.tensor are both given"):
        parse_workload({**SIZES, "tp": 2, "parallel": {"tensor": 4}}, "t")


def test_a_global_batch_is_accumulated_in_the_largest_micro_batch_that_fits() -> None:
    gpu = gpu_catalogue()["H100-SXM-80G"].gpu
    document = {"model": "llama3-8b", "sequence": 2048, "global_batch": 128}
    found = resolve(parse_workload(document, "t"), 8, gpu)
    c = found.config
    assert isinstance(c, LanguageConfig)
    assert 1 < c.layout.micro_batches <= 16
    assert found.memory().peak_bytes < gpu.usable_bytes
    stated = resolve(parse_workload({**document, "mbs": 16}, "t"), 8, gpu).config
    assert stated.layout.micro_batches == 1  # type: ignore[union-attr]


def test_fused_attention_has_no_fp32_kernels() -> None:
    with pytest.raises(InputError, match="flash2 kernels compute in half precision"):
        config({"framework": "megatron", "precision": "fp32", "attention": "flash2"}, data=2, zero=1)


def test_nvfp4_is_the_type_of_gemms_only() -> None:
    c = config({"precision": "nvfp4"}, data=2)
    assert (c.training.product_dtype, c.training.dtype) == ("fp4", "bf16")


def test_a_stage_without_layers_does_nothing() -> None:
    axes = {"framework": "nanotron", "dp": 2, "zero": 3, "pp": 5}
    found = parse_workload({**SIZES, "layers": 3, "global_batch": 8, **axes}, "t")
    assert found.memory().peak_bytes > 0
    assert len(found.job().programs) == 5


def test_heads_of_keys_are_repeated_where_ranks_exchange_more_heads() -> None:
    c = config({"framework": "deepspeed"}, context=8)
    assert c.layout.context_kind == "all_to_all"
    document = {**SIZES, "kv_heads": 2, "framework": "deepspeed", "cp": 8}
    assert parse_workload(document, "t").memory().peak_bytes > 0
    with pytest.raises(InputError, match="do not spread over"):
        parse_workload({**SIZES, "heads": 3, "head_dim": 4, "framework": "deepspeed", "cp": 8}, "t")


@pytest.mark.parametrize(
    ("parallel", "stages"),
    [
        ({"pipeline": 2, "data": 1}, 2),  # 8 layers on two ranks, two in each piece
        ({"pipeline": 2, "data": 1, "virtual_stages": 1}, 1),
        ({"pipeline": 2, "data": 1, "schedule": "zero_bubble"}, 1),
        ({"pipeline": 3, "data": 1}, 1),  # 8 micro-batches are not whole groups of three
        ({"data": 2}, 1),
    ],
)
def test_megatron_interleaves_a_pipeline(parallel: dict[str, Any], stages: int) -> None:
    found = parse_workload({**SIZES, "batch_per_rank": 8, "parallel": parallel}, "test")
    assert isinstance(found.config, LanguageConfig)
    assert found.config.layout.virtual_stages == stages


def test_stages_are_cut_finer_where_the_pipeline_would_stand_idle() -> None:
    """Four micro-batches on two stages of two pieces: idle for an eighth."""
    found = parse_workload({**SIZES, "batch_per_rank": 4, "parallel": {"pipeline": 2, "data": 1}}, "test")
    assert isinstance(found.config, LanguageConfig)
    assert found.config.layout.virtual_stages == 4


def test_training_metrics_evaluate_the_loss_again() -> None:
    """llm-foundry's cross entropy and perplexity, in fp32 under autocast."""
    pure, autocast = (
        head_work(config({"recipe": "llm-foundry", "precision": "bf16", "master_weights": m}, data=2))
        for m in (True, False)
    )
    for work, dtype in ((pure, "bf16"), (autocast, "fp32")):
        assert (
            sum(n for k, n in work.forward.kernels.items() if k.family == "softmax" and k.dtype == dtype) == 2
        )


def test_a_recipe_may_have_a_schedule_for_pipelines() -> None:
    assert config({"recipe": "deepseek-2024"}, pipeline=2, data=1).layout.schedule == "zero_bubble"
    assert config({"recipe": "deepseek-2024"}, data=2).layout.schedule == "1f1b"


@pytest.mark.parametrize(
    ("model", "platform", "words"),
    [
        ("llama3-8b", "8xH100-SXM", "FSDP by default, selective recomputation"),
        ("llama3-70b", "8x8xH100-SXM-400G", "FSDP by default, full recomputation to fit"),
        ("gpt2", "8xH100-SXM", "ZeRO-1"),
    ],
)
def test_a_model_that_nothing_spreads_is_sharded_where_it_is_large(
    model: str, platform: str, words: str
) -> None:
    found = predict(model, platform)
    assert found.fits
    assert found.setup is not None
    assert words in ", ".join(found.setup.details)


def test_a_stated_layout_is_not_replaced() -> None:
    found = predict("llama3-8b", "8xH100-SXM", set={"zero": 1})
    assert not found.fits
    assert found.setup is not None
    assert found.setup.recipe.startswith("megatron")


def test_fsdp_is_one_recipe_by_file_name_and_config(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "head_dim": 64,
    }  # fmt: skip
    config_file, toml = tmp_path / "config.json", tmp_path / "model.toml"
    config_file.write_text(json.dumps({"model_type": "llama", "torch_dtype": "bfloat16", **sizes}))
    toml.write_text(
        'kind = "transformer"\nfamily = "llama"\nlayers = 16\nhidden = 2048\nheads = 32\nkv_heads = 8\n'
        "ffn = 8192\nvocab = 128256\ntied = true\nsequence = 8192\nbatch_per_rank = 1\n"
    )
    asked = {"parallel.zero": "3", "sequence": "8192"}
    gpu = load_platform("8xH100-SXM").spec.gpu
    made = (load_workload(toml, asked), load_model("llama3.2-1b", asked), load_workload(config_file, asked))
    found = [resolve(each, 8, gpu).setup() for each in made]
    assert len({(setup.recipe, setup.framework, setup.details) for setup in found}) == 1


@pytest.mark.parametrize(
    "asked", ["tp=1", "pp=1", "cp=1", "ep=1", "training.fused_optimizer=true", "training.read_loss=false"]
)
def test_a_value_that_asks_for_what_happens_anyway_changes_no_recipe(asked: str) -> None:
    usual, same = (resolve(load_workload("llama3-8b", sets), 8) for sets in ([], [asked]))
    assert (same.config.recipe, same.config.layout) == (usual.config.recipe, usual.config.layout)


def test_a_large_model_stays_sharded_in_full_precision_and_with_adapters() -> None:
    for asked in ("training.precision=fp32", "training.adapters=qlora"):
        found = resolve(load_workload("llama3-8b", [asked]), 8).config
        assert (found.recipe, found.layout.zero) == ("hf-fsdp", 3)


def test_nanotron_gathers_all_parameters_in_one_message() -> None:
    (message,) = parameter_messages(config({"recipe": "nanotron"}, data=8, zero=1), 1e9, 0.0, 16)
    assert message == ("shard", "all_gather", 2e9, 1)
