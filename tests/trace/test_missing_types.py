"""Traces that recorded sizes without element types."""

from __future__ import annotations

from stepsight.trace.operators import tensors_of
from tests.trace.making import Made, made_run


def _made(kernel: str, *, typed: bool = False) -> Made:
    made = Made()
    made.op("aten::mm", 10, 100, [[64, 64], [64, 64]])
    made.launch(20, 5, kernel, 40, 10)
    if not typed:
        del made.events[0]["args"]["Input type"]
    return made


def _dtypes(made: Made) -> list[str]:
    run = made_run(made)
    return [t.dtype for t in tensors_of(run.ranks[0].linked.ops[0])]


def test_inputs_are_of_the_type_that_products_compute_in():
    made = _made("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn")
    assert _dtypes(made) == ["bf16", "bf16"]
    assert any("no types of inputs were recorded; taken as bf16" in w for w in made_run(made).warnings)


def test_amds_products_name_their_types():
    assert _dtypes(_made("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x16x64")) == ["bf16", "bf16"]
    assert _dtypes(_made("Cijk_Ailk_Bjlk_HHS_BH_MT128x128x32")) == ["fp16", "fp16"]
    assert _dtypes(_made("Cijk_Ailk_Bljk_SB_MT64x64x8")) == ["fp32", "fp32"]


def test_recorded_types_stay():
    made = _made("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", typed=True)
    assert _dtypes(made) == ["fp32", "fp32"]
    assert not made_run(made).warnings
