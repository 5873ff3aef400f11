"""A machine that reports AMX and hides its tiles computes without it; the user's own choice stays."""

from __future__ import annotations

from stepsight.run import amx


def test_without_described_tiles_onednn_is_kept_to_avx512(monkeypatch) -> None:
    monkeypatch.setattr(amx, "amx_usable", lambda: False)
    assert amx.settings({}) == {amx.VARIABLE: amx.WITHOUT_AMX}
    assert amx.settings({amx.VARIABLE: "ALL"}) == {}


def test_a_machine_with_tiles_or_without_amx_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(amx, "amx_usable", lambda: True)
    assert amx.settings({}) == {}


def test_this_machine_can_be_asked() -> None:
    assert amx.amx_usable() in (True, False)
