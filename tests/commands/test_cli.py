"""The command line as a user meets it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def stepsight(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stepsight", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_help_lists_every_command():
    shown = stepsight("--help").stdout
    for name in (
        "predict",
        "compare",
        "shard",
        "kernel",
        "collective",
        "calibrate",
        "run",
        "validate",
        "inspect",
    ):
        assert name in shown


def test_predict_prints_the_fields_that_scripts_rely_on():
    done = stepsight("predict", "examples/dlrm.toml", "--platform", "4xV100-SXM2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for field in ("step_time_us", "low_us", "high_us", "breakdown_us", "coverage", "platform", "workload"):
        assert field in document
    for field in ("host_us", "gpu_active_us", "exposed_communication_us", "idle_us"):
        assert field in document["ranks"][0]


def test_explain_prints_values_as_a_file_has_them():
    shown = stepsight("predict", "llama3-8b", "-p", "8xH100-SXM", "--explain").stdout
    assert '["tensor",' in shown
    assert "('" not in shown and "()" not in shown and "True" not in shown


def test_set_reaches_the_workload_and_the_platform():
    base = json.loads(stepsight("predict", "examples/gpt2.toml", "-p", "4xV100-SXM2", "--json").stdout)
    changed = stepsight(
        "predict", "examples/gpt2.toml", "-p", "4xV100-SXM2", "--json",
        "--set", "batch_per_rank=16", "--set", "platform.link.gbps=1",
    )  # fmt: skip
    assert json.loads(changed.stdout)["step_time_us"] > base["step_time_us"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("predict", "missing.toml", "-p", "4xV100-SXM2"), "missing.toml"),
        (("predict", "examples/dlrm.toml", "-p", "9xNothing"), "unknown GPU"),
        (("predict", "examples/dlrm.toml", "-p", "8xH101"), "did you mean 'H100-SXM-80G'"),
        (("predict", "examples/dlrm.toml"), "--platform is missing"),
        (
            ("predict", "examples/dlrm.toml", "-p", "2xV100-SXM2", "--set", "parallel.ranks=4"),
            "has 2 GPUs, the workload needs 4",
        ),
        (("predict", "examples/dlrm.toml", "-p", "4xV100", "--set", "batch=-1"), "batch"),
        (("predict", "examples/dlrm.toml", "-p", "4xV100", "--set", "bacth=1"), "batch"),
        (("predict", "examples/dlrm.toml", "-p", "4xV100", "--timeline", "no/such/folder/t.json"), "folder"),
        (("predict", "examples/dlrm.toml", "-p", "4xV100", "--html", "examples"), "examples: is a folder"),
        (
            ("sweep", "examples/dlrm.toml", "-p", "4xV100", "--over", "nosuch=1"),
            "every combination is refused",
        ),
        (("tune", "llama4-8b", "-p", "4xV100"), "did you mean llama3-8b"),
        (("predict", "pyproject.json", "-p", "4xV100"), "pyproject.json"),
        (
            ("predict", "examples/dlrm.toml", "-p", "4xV100", "--set", "dense.cross_layers=3"),
            "cross_layers: has no effect on interaction = 'dot'",
        ),
        (("compare", "examples/dlrm.toml", "-p", "4xV100"), "A and B are the same"),
        (("capture", "examples", "-p", "4xV100"), "examples: is a folder"),
        (("kernel", "gemm", "m=512", "--gpu", "H100"), "kernel gemm: needs n, k"),
        (("predict", "llama3-8b", "-p", "8xH100", "--set", "parallel.order=5"), "order: must list tensor"),
        (("predict", "llama3-8b", "-p", "8xH100", "--set", "family=[]"), "family: unknown family"),
    ],
)
def test_a_mistake_is_one_clear_line_and_a_bad_exit(arguments, said):
    done = stepsight(*arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_json_that_is_no_config_is_not_called_toml(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = stepsight("predict", str(tmp_path / "config.json"), "-p", "8xH100-SXM")
    assert done.returncode == 2
    assert "has no model_type" in done.stderr


def test_a_table_of_kernels_without_a_file_to_write_is_printed(tmp_path):
    (tmp_path / "rows.csv").write_text("gpu,family,m,n,k,dtype\nH100,gemm,4096,4096,4096,bf16\n")
    table = stepsight("kernel", "--table", str(tmp_path / "rows.csv")).stdout.splitlines()
    assert table[0].startswith("gpu,family,m,n,k,dtype,time_us")
    (kernel,) = json.loads(stepsight("kernel", "--table", str(tmp_path / "rows.csv"), "--json").stdout)[
        "kernels"
    ]
    assert kernel["time_us"] == pytest.approx(float(table[1].split(",")[6]), abs=1e-3)


def test_a_sweep_says_what_does_not_fit_and_why_a_row_is_refused():
    done = stepsight(
        "sweep", "examples/llama3_8b_fsdp.toml", "--over", "platform=2xH100-SXM,8xH100-SXM",
        "--over", "parallel.tensor=1,3", "--set", "batch_per_rank=1",
    )  # fmt: skip
    words = " ".join(done.stdout.split())
    assert "of 82: does not fit" in words
    assert "refused [1]" in words
    assert "tensor: 3 does not divide heads = 32 and ffn = 14336; use a divisor" in words


def test_compare_says_where_the_difference_went():
    done = stepsight(
        "compare", "examples/dlrm.toml", "-p", "4xV100-SXM2", "--set-b", "platform.host.speed=3", "--json"
    )
    document = json.loads(done.stdout)
    assert document["speedup"] > 1
    assert sum(c["difference_us"] for c in document["changes"]) == pytest.approx(
        document["difference_us"], rel=0.1
    )


def test_predicting_needs_no_torch():
    code = (
        "import sys; from stepsight import load_platform, load_workload, predict; "
        "predict(load_workload('examples/dlrm.toml'), load_platform('4xV100-SXM2')); "
        "assert not {'torch', 'lightgbm', 'pyarrow', 'scipy', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_a_predicted_step_goes_out_to_chakra(tmp_path):
    done = stepsight("predict", "examples/dlrm.toml", "-p", "4xV100-SXM2", "--chakra", str(tmp_path / "et"))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "et").glob("*.et"))) == 4


def test_what_does_not_fit_comes_with_options_that_were_tried():
    job = ("predict", "llama3-8b", "-p", "8xH100-SXM", "--set", "zero=1")
    done = stepsight(*job)
    line = next(line for line in done.stdout.splitlines() if "to make it fit: --set" in line)
    options = shlex.split(line.split("to make it fit: ", 1)[1].split("  (")[0])
    again = stepsight(*job, "--must-fit", *options)
    assert again.returncode == 0, again.stdout
    assert "DOES NOT FIT" not in again.stdout


def test_sizes_of_a_kernel_are_plain_arguments():
    plain = stepsight("kernel", "gemm", "m=512", "n=512", "k=512", "--gpu", "H100")
    named = stepsight("kernel", "gemm", "--dim", "m=512", "--dim", "n=512", "--dim", "k=512", "--gpu", "H100")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout == named.stdout
    wrong = stepsight("kernel", "gemm", "512", "--gpu", "H100")
    assert wrong.returncode == 2
    assert "NAME=SIZE" in wrong.stderr


@pytest.mark.parametrize(("name", "parameters_gb"), [("resnet50", 0.102), ("stable-diffusion", 3.46)])
def test_vision_models_have_a_name_and_run_on_any_number_of_gpus(name, parameters_gb):
    rates = []
    for gpus in (1, 8):
        done = stepsight("predict", name, "-p", f"{gpus}xA100-SXM4-80G", "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert len(answer["ranks"]) == gpus
        assert answer["memory"]["parts_bytes"]["parameters"] == pytest.approx(1e9 * parameters_gb, rel=0.01)
        rates.append(answer["throughput"]["samples_per_s"])
    assert 7 < rates[1] / rates[0] <= 8


WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from stepsight.cli import main
main()
"""


@pytest.mark.parametrize("arguments", [("capture", "x.py", "-p", "4xV100"), ("run", "examples/dlrm.toml")])
def test_a_command_that_needs_torch_says_so(arguments: tuple[str, ...]) -> None:
    line = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "stepsight: this needs torch, which is not installed; pip install torch\n"


def test_a_misspelt_command_is_named():
    done = stepsight("predcit", "gpt2", "-p", "8xH100-SXM")
    assert done.returncode == 2 and "did you mean predict?" in done.stderr


def test_compare_names_the_figures_of_the_platform_that_differ():
    done = stepsight("compare", "gpt2", "-p", "2x8xH100-SXM-400G", "--set-b", "platform.nic.gbps=45")
    assert "differs: platform.nic.gbps: 50.0 → 45.0" in done.stdout


def test_parts_of_a_platform_are_found_by_other_names():
    done = stepsight("predict", "gpt2", "-p", "8xH100-SXM", "--set", "platform.network.gbps=9")
    assert done.returncode == 2 and "did you mean nic?" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "{}", "-p", "8xH100"), ("predict", "llama3-8b", "-p", "8x{}"), ("inspect", "{}"),
        ("kernel", "gemm", "m=64", "n=64", "k=64", "--gpu", "{}"), ("kernel", "--table", "{}"),
        ("predict", "--trace", "{}"),
        ("predict", "llama3-8b", "-p", "8xH100", "--html", "{}"),
    ],
)  # fmt: skip
def test_a_name_longer_than_a_file_can_have_is_refused(arguments):
    done = stepsight(*(word.format("x" * 400) for word in arguments))
    assert done.returncode == 2 and done.stderr.startswith("stepsight:")
    assert "Traceback" not in done.stderr
