"""Factors learned on a platform: where they act, and that nothing exceeds peak."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepsight import predict
from stepsight.errors import InputError
from stepsight.platform.load import Platform, load_platform
from stepsight.platform.power import light_us
from stepsight.program.job import Kernel

GEMM = Kernel.of("gemm", "bf16", batch=1, m=4096, n=4096, k=4096)
DLRM = {
    "kind": "dlrm", "batch": 262_144, "dense": {"features": 13, "bottom": [512, 64], "top": [512, 1]},
    "tables": [{"count": 8, "rows": 100_000, "dim": 64, "pooling": 10.0}], "parallel": {"ranks": 8},
}  # fmt: skip


def platform(tmp_path: Path, learned: str, nodes: int = 1) -> Platform:
    file = tmp_path / "mine.toml"
    file.write_text(f'gpu = "H100-SXM"\ngpus_per_node = 8\nnodes = {nodes}\n[learned]\n{learned}\n')
    return load_platform(file)


def test_a_factor_multiplies_the_times_of_its_part(tmp_path: Path) -> None:
    usual, slower = (platform(tmp_path, f"gemm = {f}").conditions.kernels([GEMM])[0] for f in (1.0, 1.5))
    assert slower.time_us == pytest.approx(1.5 * usual.time_us)


def test_no_factor_takes_a_kernel_below_the_speed_of_light(tmp_path: Path) -> None:
    mine = platform(tmp_path, "gemm = 0.1")
    assert mine.conditions.kernels([GEMM])[0].time_us[0] == pytest.approx(light_us([GEMM], mine.spec.gpu)[0])


def test_network_factors_grow_with_the_nodes(tmp_path: Path) -> None:
    usual = platform(tmp_path, "link = 1.0", 4).conditions
    mine = platform(tmp_path, "link = 1.2\nnetwork = 2.0\nnetwork_per_doubling = 1.5", 4).conditions

    def ratio(ranks: int) -> float:
        asked = ("world", "all_reduce", 1e8, tuple(range(ranks)))
        return mine.collective(*asked).time_us / usual.collective(*asked).time_us

    assert [ratio(n) for n in (8, 16, 32)] == pytest.approx([1.2, 2.0, 3.0])


def test_every_job_feels_them(tmp_path: Path) -> None:
    usual = predict(DLRM, platform(tmp_path, "host = 1.0")).step_time_us
    for part in ("embedding", "memory_bound", "link"):
        assert predict(DLRM, platform(tmp_path, f"{part} = 3.0")).step_time_us > usual


@pytest.mark.parametrize("learned", ["network = 2.0", "gemm = 0.0", "gemms = 1.1", "gemm = 'fast'"])
def test_what_has_no_effect_or_no_sense_is_refused(tmp_path: Path, learned: str) -> None:
    with pytest.raises(InputError, match="learned"):
        platform(tmp_path, learned)


def test_factors_of_kernels_that_a_job_lacks_are_named(tmp_path: Path) -> None:
    mine = platform(tmp_path, "embedding = 2.0\ngemm = 1.1")
    model = {
        "kind": "transformer",
        "family": "llama",
        "layers": 2,
        "hidden": 512,
        "heads": 8,
        "vocab": 1024,
        "sequence": 512,
        "batch_per_rank": 1,
    }
    unused = [note for note in predict(model, mine).notes if note.startswith("learned embedding: no effect")]
    assert len(unused) == 1
    assert not [note for note in predict(DLRM, mine).notes if "no effect" in note]
