"""The shipped coefficients are what the command fits, to the digit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.fit.embedding.command import command
from stepsight.kernels.embedding.gpu import SHIPPED

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def fitted(measured_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    pytest.importorskip("scipy")
    pytest.importorskip("pyarrow")
    out = tmp_path_factory.mktemp("fit") / "coefficients.json"
    arguments = ["--data", str(measured_data), "--out", str(out), "--json"]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    return json.loads(done.stdout), out


def test_the_fit_gives_the_shipped_coefficients_again(
    fitted: tuple[dict[str, dict[str, float]], Path],
) -> None:
    shipped = json.loads(SHIPPED.read_text())["coefficients"]
    again = fitted[0]["coefficients"]
    assert again == pytest.approx(shipped, rel=0.005)  # rounding: the third digit


def test_what_is_printed_is_what_is_written(fitted: tuple[dict[str, object], Path]) -> None:
    printed, out = fitted
    assert json.loads(out.read_text()) == printed


def test_known_kernels_are_predicted_without_having_been_fitted(
    fitted: tuple[dict[str, list[dict[str, object]]], Path],
) -> None:
    left_out = {str(line["source"]): float(line["left_out_gmae"]) for line in fitted[0]["sources"]}
    assert left_out["V100 points"] < 0.10
    assert left_out["DLRM_default list"] < 0.08 and left_out["DLRM_MLPerf list"] < 0.08
