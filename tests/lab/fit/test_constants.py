"""Fitted values are written where the package reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.fit import constants
from stepsight.constants import Constant, area, area_names


@pytest.mark.parametrize("name", area_names())
def test_writing_a_file_again_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (constants.FOLDER / f"{name}.toml").read_text()
    monkeypatch.setattr(constants, "FOLDER", tmp_path)
    assert constants.write(name, area(name).entries).read_text() == before


def test_a_value_is_replaced_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "FOLDER", tmp_path)
    text = constants.store("simulate", {"FILLS_US": 60.0}, runs=4).read_text()
    assert "value = 60.0" in text and "runs = 4" in text and "[SHARED_LINK]" in text


def test_every_kind_of_value_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "FOLDER", tmp_path)
    entry = Constant({"a": 1.5}, 'a "unit"', "b", "c", applies_to="Hopper")
    assert 'value = { a = 1.5 }\nunit = "a \\"unit\\""' in constants.write("x", {"A": entry}).read_text()
