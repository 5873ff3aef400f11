"""Platforms by name and by path, and the errors that name the field and the fix."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from stepsight.cli import cli
from stepsight.errors import InputError
from stepsight.hardware.gpus import gpu_catalogue, load_gpu
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict

NAMED = {
    "4xV100-SXM2": ("V100-SXM2-16G", 4, 1),
    "8xA100-SXM4-40G": ("A100-SXM4-40G", 8, 1),
    "8xH100-SXM": ("H100-SXM-80G", 8, 1),
    "2x8xH100-SXM-400G": ("H100-SXM-80G", 8, 2),
    "16xMI300X": ("MI300X", 16, 1),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_says_how_many_of_which(name):
    spec = load_platform(name).spec
    assert (spec.gpu.name, spec.gpus_per_node, spec.nodes) == NAMED[name]


def test_the_nic_of_the_name_is_per_gpu_and_in_gigabits():
    spec = load_platform("2x8xH100-SXM-200G").spec
    assert spec.nic is not None
    assert spec.nic.gbps == 25.0


def test_one_node_needs_no_nic():
    assert load_platform("8xH100-SXM").spec.nic is None


@pytest.mark.parametrize("name", ["NVIDIA_H100_80GB_HBM3", "h100-sxm", "H100 SXM5"])
def test_gpus_answer_to_the_names_other_tools_give_them(name):
    assert load_gpu(name).name == "H100-SXM-80G"


def test_every_gpu_of_the_catalogue_has_figures_and_a_source():
    for entry in gpu_catalogue().values():
        assert entry.gpu.source
        assert entry.link.source
        assert 0 < entry.gpu.memory_gbps < entry.gpu.l2_gbps * 2


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("8xA100-SMX4-40G", "did you mean"),
        ("8xA1000", "did you mean 'A100-SXM4-80G'"),
        ("nonsense", "neither a name"),
        ("0xV100", "at least one GPU"),
    ],
)
def test_a_wrong_name_says_what_to_do(name, problem):
    with pytest.raises(InputError, match=problem):
        load_platform(name)


def test_fields_of_a_named_platform_can_be_changed():
    spec = load_platform("8xA100-SXM4-40G", ["link.gbps=50", "host.speed=2", "gpu.memory_gbps=2000"]).spec
    assert (spec.link.gbps, spec.host.speed, spec.gpu.memory_gbps) == (50, 2, 2000)


def test_another_gpu_brings_its_own_link():
    spec = load_platform("8xA100-SXM4-40G", ["gpu=H100-SXM"]).spec
    assert (spec.gpu.name, spec.link.gbps) == ("H100-SXM-80G", 450.0)


def test_an_unknown_field_is_named(tmp_path):
    with pytest.raises(InputError, match=r"link\.gpbs.*did you mean 'gbps'"):
        load_platform("8xA100-SXM4-40G", ["link.gpbs=50"])


def test_a_users_own_platform_is_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\ngpu = "A40"\ngpus_per_node = 4\n[link]\ngbps = 20.0\n')
    spec = load_platform(file).spec
    assert (spec.name, spec.gpu.name, spec.link.kind, spec.link.gbps) == ("mine", "A40", "pcie", 20.0)


def test_a_broken_file_is_named(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("gpu = ")
    with pytest.raises(InputError, match=r"mine\.toml.*not valid TOML"):
        load_platform(file)


def test_a_job_larger_than_the_platform_is_refused():
    with pytest.raises(InputError, match="has 4 GPUs, the workload needs 8"):
        load_platform("4xV100-SXM2").with_ranks(8)


@pytest.mark.parametrize(
    ("workload", "lower"),
    [
        ("examples/dlrm_nvidia_large.toml", "parallel.ranks$"),
        ("llama3-8b", "parallel.data, tensor or pipeline$"),
    ],
)
def test_what_makes_a_job_smaller_is_named(workload, lower):
    with pytest.raises(InputError, match=f"name a larger platform, or lower {lower}"):
        predict(workload, "1xA100-SXM4-40G", set={"tp": 2} if workload == "llama3-8b" else {})


def test_a_rate_that_is_set_replaces_the_one_in_the_other_unit(tmp_path):
    """``nic.gbit_per_s`` on a platform by name or file that states GB/s, and the other way round."""
    named = load_platform("2x8xH100-SXM-400G", ["nic.gbit_per_s=1600"]).spec
    assert named.nic is not None and named.nic.gbps == 200
    file = tmp_path / "site.toml"
    file.write_text('gpu = "H100-SXM"\ngpus_per_node = 8\nnodes = 2\nnic = { gbit_per_s = 400 }\n')
    described = load_platform(file, ["nic.gbps=100"]).spec
    assert described.nic is not None and described.nic.gbps == 100
    with pytest.raises(InputError, match="gives gbps and gbit_per_s"):
        load_platform(file, ["nic.gbps=100", "nic.gbit_per_s=800"])


def test_multiprocessors_and_clock_move_the_peaks_that_they_make():
    plain = load_platform("8xH100-SXM").spec.gpu
    slow = load_platform("8xH100-SXM", ["gpu.clock_mhz=915"]).spec.gpu
    assert slow.peak_tflops == {dtype: tflops / 2 for dtype, tflops in plain.peak_tflops.items()}
    (note,) = load_platform("8xH100-SXM", ["gpu.clock_mhz=915"]).notes
    assert note.startswith("H100-SXM-80G with another clock_mhz, peak_tflops:")
    stated = load_platform("8xH100-SXM", ["gpu.sms=264", "gpu.peak_tflops.bf16=1000"]).spec.gpu
    assert stated.peak_tflops == {**plain.peak_tflops, "bf16": 1000}


def test_a_board_is_not_much_faster_than_others_of_its_kind():
    """Beyond, kernels would run above the peak: the figures are what to change."""
    assert load_platform("8xH100-SXM", ["gpu.speed=1.1"]).spec.gpu.speed == 1.1
    with pytest.raises(InputError, match=r"speed is 3, must be from 1e-06 to 1.3"):
        load_platform("8xH100-SXM", ["gpu.speed=3"])


@pytest.mark.parametrize(
    ("name", "taken"),
    [("8xA100", "A100-SXM4-40G"), ("2x8xA100-200G", "A100-SXM4-40G"), ("H100", "H100-SXM-80G")],
)
def test_a_short_name_says_which_board_it_took(name, taken):
    said = load_platform(name).notes[0]
    assert f"is taken as {taken}; others: " in said
    assert load_platform("8xA100-SXM4-80G").notes == ()


@pytest.mark.parametrize(
    "asked",
    [
        "predict llama3.2-1b", "compare llama3.2-1b --set-b mbs=2", "advise llama3.2-1b",
        "diagnose llama3.2-1b --measured 9s", "sweep llama3.2-1b --over mbs=1", "shard examples/dlrm.toml",
        "tune llama3.2-1b --over tp=1", "collective all_reduce --bytes 1e6",
    ],
)  # fmt: skip
def test_every_command_says_which_board_it_took(asked: str) -> None:
    said = CliRunner().invoke(cli, [*asked.split(), "-p", "8xA100"])
    assert "A100 is taken as A100-SXM4-40G; others: " in " ".join(said.output.split())


def test_nodes_that_no_server_has_are_named_by_nodes_of_eight() -> None:
    (note,) = load_platform("4x64xH100-SXM-400G").notes
    assert note.endswith("write 32x8xH100-SXM-80G-400G")


def test_a_name_may_end_in_the_kind_of_network() -> None:
    usual, named = (load_platform(f"2x8xH100-SXM-400G{kind}").spec for kind in ("", "-EFA"))
    assert (usual.nic and usual.nic.kind, named.nic and named.nic.kind) == ("infiniband", "efa")
    assert named.nic and named.nic.gbps == 50.0
