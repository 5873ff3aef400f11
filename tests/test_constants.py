"""Every chosen constant is data: value, unit, basis, and what it affects."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepsight
from stepsight.constants import Area, Constant, area, area_names
from stepsight.overheads.frameworks import profiles

SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for path in Path(stepsight.__file__).parent.rglob("*.py")
)


@pytest.mark.parametrize("name", area_names())
def test_each_constant_has_its_unit_and_basis_and_is_read(name: str) -> None:
    for key, constant in area(name).entries.items():
        assert f'"{key}"' in SOURCES or f"C.{key}" in SOURCES
        assert constant.unit.strip() and constant.basis.strip() and constant.affects.strip()


def test_each_host_profile_has_its_basis() -> None:
    assert all(profile.basis and profile.applies_to for profile in profiles().values())


def test_a_constant_of_one_run_says_so() -> None:
    assert Constant(1.0, "µs", "one host", "host times", runs=1).few_runs
    assert not Constant(1.0, "µs", "three hosts", "host times", runs=3).few_runs
    assert not Constant(1.0, "µs", "chosen", "host times").few_runs


def test_a_value_is_read_with_the_type_that_the_code_expects() -> None:
    file = Area("a", {"N": Constant(3, "", "", ""), "T": Constant([1, 2.5], "", "", "")})
    assert (file.whole("N"), file.N, file.numbers("T")) == (3, 3.0, (1.0, 2.5))
    assert not hasattr(file, "M")
