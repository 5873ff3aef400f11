"""Every chosen figure of an area stands in one table, with its unit and what it rests on."""

from importlib import import_module

import pytest

from stepsight.basis import Basis
from stepsight.overheads.frameworks import profiles
from stepsight.trace.rules import RULES

AREAS = ("calibrate", "collectives", "kernels", "overheads", "prediction.traced", "sharding", "simulate")


def is_stated(basis: Basis) -> bool:
    return all(part.strip() for part in (basis.unit, basis.rests_on, basis.moves))


@pytest.mark.parametrize("area", AREAS)
def test_each_figure_has_its_basis(area: str) -> None:
    module = import_module(f"stepsight.{area}.constants")
    figures = {name for name in vars(module) if name.isupper() and name[0] != "_" and "BASES" not in name}
    assert figures == set(module.BASES)
    assert all(is_stated(basis) for basis in module.BASES.values())


def test_each_host_profile_has_its_basis() -> None:
    assert all(profile.basis and profile.applies_to for profile in profiles().values())


@pytest.mark.parametrize("name", list(RULES))
def test_each_rule_of_traces_has_its_basis(name: str) -> None:
    assert is_stated(RULES[name].basis)


def test_a_figure_of_one_run_says_so() -> None:
    assert Basis("µs", "one host", "host times", runs=1).few_runs
    assert not Basis("µs", "three hosts", "host times", runs=3).few_runs
    assert not Basis("µs", "chosen", "host times").few_runs
    assert RULES["shortest_sleep"].basis.few_runs
    assert not RULES["full_queue"].basis.few_runs
