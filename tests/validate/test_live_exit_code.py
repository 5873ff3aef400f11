"""A missed bar of ``validate live`` is exit code 1, with and without --json; met bars are 0."""

from __future__ import annotations

import json

import click
import pytest

from stepsight.validate.live import LiveRow, report

AS_JSON = pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
MISSED = pytest.mark.parametrize("missed", [False, True], ids=["met", "missed"])


@MISSED
@AS_JSON
def test_live(missed: bool, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The command trains; what it does with its rows is tested."""
    predicted = 150.0 if missed else 100.0
    code = 0
    try:
        report([LiveRow("d", "DLRM", predicted, 50.0, 100.0, (100.0, 100.0))], "here", as_json=as_json)
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    assert code == int(missed)
    shown = capsys.readouterr().out
    assert json.loads(shown)["rows"][0]["name"] == "d" if as_json else "predicted, then measured" in shown
