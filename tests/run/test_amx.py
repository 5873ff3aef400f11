"""A machine that reports AMX and hides its tiles computes without it; the user's own choice stays."""

from __future__ import annotations

from stepsight.run import ranks


def test_without_described_tiles_onednn_is_kept_to_avx512(monkeypatch) -> None:
    monkeypatch.setattr(ranks, "amx_usable", lambda: False)
    assert ranks.amx_settings({}) == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    assert ranks.amx_settings({"ONEDNN_MAX_CPU_ISA": "ALL"}) == {}


def test_a_machine_with_tiles_or_without_amx_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(ranks, "amx_usable", lambda: True)
    assert ranks.amx_settings({}) == {}


def test_this_machine_can_be_asked() -> None:
    assert ranks.amx_usable() in (True, False)
