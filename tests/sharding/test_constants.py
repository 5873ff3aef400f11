"""Every chosen figure of an area stands in one table, with its unit and what it rests on."""

from types import ModuleType

import pytest

from stepsight.calibrate import constants as calibrating
from stepsight.sharding import constants as sharding


@pytest.mark.parametrize("module", [sharding, calibrating], ids=["sharding", "calibrate"])
def test_each_figure_has_its_basis(module: ModuleType) -> None:
    figures = {name for name in vars(module) if name.isupper() and name != "BASES"}
    assert figures == set(module.BASES)
    assert all(all(part.strip() for part in basis) for basis in module.BASES.values())
