"""A calibrated GPU is described by its data sheet or its driver, never by a CPU's figures."""

from types import SimpleNamespace

import pytest

from stepsight.calibrate.rehearsal import cpu_spec, cuda_spec
from stepsight.errors import InputError
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.measured import MeasuredProcessor

MACHINE = MeasuredProcessor(gflops=12_000.0, memory_gbps=800.0)


def properties(**more: object) -> SimpleNamespace:
    known = {"name": "NVIDIA A100-SXM4-40GB", "total_memory": 42.4e9, "multi_processor_count": 108,
             "clock_rate": 1_410_000, "L2_cache_size": 40 * 2**20, "major": 8, "minor": 0}  # fmt: skip
    return SimpleNamespace(**{**known, **more})


def test_a_gpu_of_the_catalogue_keeps_its_data_sheet():
    spec = cuda_spec(properties(), MACHINE)
    known = load_gpu("A100-SXM4-40G")
    assert (spec.sms, spec.clock_mhz, spec.l2_mb) == (known.sms, known.clock_mhz, known.l2_mb)
    assert spec.peak_tflops["fp16"] == known.peak_tflops["fp16"]
    assert spec.launch_us > 0
    assert spec.memory_gb == pytest.approx(42.4e9 / 2**30)  # data sheets count in these


def test_another_gpu_is_described_by_its_driver():
    spec = cuda_spec(properties(name="NVIDIA Unheard Of", multi_processor_count=50), MACHINE)
    assert spec.sms == 50
    assert spec.peak_tflops["fp32"] == pytest.approx(2 * 64 * 50 * 1410 / 1e6)
    assert spec.memory_gbps == 800.0


def test_what_neither_tells_is_an_error():
    with pytest.raises(InputError, match="not in the catalogue"):
        cuda_spec(properties(name="NVIDIA Unheard Of", clock_rate=0), MACHINE)


def test_a_cpu_is_one_core_a_rank():
    spec = cpu_spec(MACHINE, 2)
    assert (spec.architecture, spec.sms, spec.launch_us) == ("cpu", 1, 0.0)
