"""One model by several routes: a file, its name, a config.json; with --captured a file and captured scripts;
with --traced profiles of real runs (a folder of measured traces) and the scripts that were run, captured.
Prints the tables of docs/architecture.md.

python benchmarks/routes.py [--captured | --traced ../shared/data/traces]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import stepsight
from stepsight import Prediction, load_platform, load_workload, predict, predict_trace
from stepsight.workload.files import load_model

PLATFORMS = ("8xH100-SXM", "8xA100-SXM4-80G", "8xB200-SXM", "2x8xH100-SXM-400G")
RECIPE = {"training.recipe": "torchtitan-2025", "global_batch": "64"}
TOML = """
kind = "transformer"
family = "llama"
layers = 16
hidden = 2048
heads = 32
kv_heads = 8
ffn = 8192
vocab = 128256
sequence = 8192
tied = true
batch_per_rank = 1
"""
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": True, "head_dim": 64, "torch_dtype": "bfloat16",
}  # fmt: skip


SCRIPTS = {"captured, plain": "llama_plain.py", "captured, Hugging Face": "llama_hf.py"}
EAGER = {
    "training.framework": "eager", "training.precision": "bf16", "training.fused_optimizer": "true",
    "training.attention": "flash", "training.optimizer": "adamw", "sequence": "4096", "tied": "false",
}  # fmt: skip
"""What the scripts do: DistributedDataParallel, autocast, fused AdamW."""


EXAMPLES = Path(__file__).parents[1] / "examples" / "capture"
PROFILED = (
    ("opt_zero1.py", ("--dtype", "bfloat16"), "8xA800-SXM4-80G", "liplus_zero1_n122248036_415351"),
    ("opt_zero1.py", ("--dtype", "float16"), "8xV100-SXM2-32G", "liplus_zero1_n31145242_1056079"),
    ("resnet50_ddp.py", (), "8xV100-SXM2-32G", "liplus_ddp_n31145242_966278"),
)
"""Script, its arguments, platform, and the profile of a run of the same model, batch and parallelism."""


def traced(folder: Path) -> None:
    """The captured script and the profile by its models alone, with what the profile measured."""
    print("| script | platform | route | step | products | vector | exposed |\n|---|---|---|---|---|---|---|")
    for script, options, platform, profile in PROFILED:
        of_run = predict_trace([str(folder / profile)], models_only=True)
        found = {
            "captured": predict(stepsight.capture(EXAMPLES / script, platform, arguments=options), platform),
            "trace, models alone": of_run,
        }
        for route, p in found.items():
            products = sum(p.breakdown_us.get(part, 0.0) for part in ("gemm", "conv", "attention"))
            parts = (p.step_time_us, products, p.breakdown_us["vector"], p.exposed_communication_us)
            row = " | ".join(f"{us / 1e3:.1f} ms" for us in parts)
            print(f"| `{script}` | {platform} | {route} | {row} |", flush=True)
        print(f"| `{script}` | {platform} | measured | {of_run.measured_us / 1e3:.1f} ms | | | |", flush=True)


def captured(folder: Path) -> dict[str, dict[str, Prediction]]:
    """The file and both scripts, by route and platform; a step is captured once for each number of ranks."""
    toml = folder / "model.toml"
    toml.write_text(TOML)
    found: dict[str, dict[str, Prediction]] = {}
    steps = {}
    for name in PLATFORMS:
        on = load_platform(name)
        described = load_workload(toml, {**EAGER, "parallel.data": str(on.spec.ranks)})
        found.setdefault("TOML", {})[name] = predict(described, on)
        for route, script in SCRIPTS.items():
            key = route, on.spec.ranks
            if key not in steps:
                steps[key] = stepsight.capture(Path(__file__).with_name(script), on)
            found.setdefault(route, {})[name] = predict(steps[key], on)
    return found


def routes(folder: Path) -> dict[str, dict[str, Prediction]]:
    """Predictions by route and platform."""
    toml, config = folder / "model.toml", folder / "config.json"
    toml.write_text(TOML)
    config.write_text(json.dumps(CONFIG))
    found: dict[str, dict[str, Prediction]] = {}
    for name in PLATFORMS:
        on = load_platform(name)
        workloads = {
            "TOML": load_workload(toml, RECIPE),
            "--model llama3.2-1b": load_model("llama3.2-1b", {**RECIPE, "sequence": "8192"}),
            "config.json": load_workload(config, {**RECIPE, "sequence": "8192"}),
        }
        for route, workload in workloads.items():
            found.setdefault(route, {})[name] = predict(workload, on)
    return found


def main() -> None:
    if "--traced" in sys.argv:
        traced(Path(sys.argv[sys.argv.index("--traced") + 1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = (captured if "--captured" in sys.argv else routes)(Path(folder))
    print("| route | platform | step | GEMM | attention | memory |\n|---|---|---|---|---|---|")
    for route, by_platform in found.items():
        for name, p in by_platform.items():
            gemm, attention = (p.breakdown_us.get(part, 0.0) / 1e3 for part in ("gemm", "attention"))
            held = p.memory.total_bytes / 1e9 if p.memory else 0.0
            print(
                f"| {route} | {name} | {p.step_time_us / 1e3:.1f} ms | {gemm:.1f} ms | {attention:.1f} ms"
                f" | {held:.1f} GB |"
            )


if __name__ == "__main__":
    main()
