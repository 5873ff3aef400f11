"""Names that were probably meant."""

from __future__ import annotations

import pytest

from stepsight.errors import InputError
from stepsight.hardware.gpus import nearest_gpu
from stepsight.records import closest, nearest
from stepsight.workload.llm.hugging_face import from_hugging_face


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("tensors", ["tensor", "pipeline"], "tensor"),
        ("zeor", ["zero", "order"], "zero"),
        ("sequence_length", ["sequence", "layers"], "sequence"),
        ("batch", ["batch_per_rank", "heads"], "batch_per_rank"),
        ("llama4_text", ["gemma3_text", "llama", "qwen2"], None),
        ("fused_optimizer", ["optimizer", "fused_norm"], None),
        ("a", ["a_b", "c"], None),
    ],
)
def test_only_names_that_are_close_are_suggested(given: str, known: list[str], meant: str | None) -> None:
    assert closest(given, known) == meant
    assert ("did you mean" in nearest(given, known)) == (meant is not None)


def test_of_a_long_list_only_the_nearest_are_named() -> None:
    names = [f"name-{i}" for i in range(40)] + ["gemm", "gemv"]
    assert nearest("gemmm", names) == "did you mean 'gemm' or 'gemv'?"
    assert nearest("name-4x", names).count("name-") == 3
    assert nearest("zzz", names).startswith("known: gemm, gemv, name-0")


def test_a_gpu_of_another_line_is_not_suggested() -> None:
    assert "did you mean" not in nearest_gpu("Gaudi-3")
    assert "did you mean 'RTX-4090'" in nearest_gpu("RTX-4091")
    assert "did you mean 'A100-SXM4-40G'" in nearest_gpu("A100-SMX4-40G")


def test_a_model_that_nobody_knows_is_not_taken_for_another() -> None:
    with pytest.raises(InputError, match="unknown 'llama4_text'; known"):
        from_hugging_face({"model_type": "llama4_text"}, "config.json")
