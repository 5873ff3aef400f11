"""A missed bar of ``validate live`` is exit code 1, with and without --json; met bars are 0."""

from __future__ import annotations

import json

import click
import pytest

from stepsight.validate.live.steps import LiveRow
from stepsight.validate.live.topic import report

AS_JSON = pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
MISSED = pytest.mark.parametrize("missed", [False, True], ids=["met", "missed"])


@MISSED
@AS_JSON
@pytest.mark.parametrize("what", ["step", "skew"])
def test_live(what: str, missed: bool, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The command trains; what it does with its rows is tested."""
    predicted = 150.0 if missed and what == "step" else 100.0
    rows = [LiveRow("d", "DLRM", predicted, 50.0, 100.0, (100.0, 100.0))]
    for i, measured in enumerate((100.0, 80.0, 60.0)):
        told = 200.0 - measured if missed and what == "skew" else measured
        rows.append(LiveRow(f"s-zipf-{i}", "skew", told, 50.0, measured, (measured, measured)))
    code = 0
    try:
        report(rows, rows, "here", as_json=as_json)
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    assert code == int(missed)
    shown = capsys.readouterr().out
    assert len(json.loads(shown)["link_change"]) == 4 if as_json else "link change over 4 workloads" in shown
