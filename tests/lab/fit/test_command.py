"""``python -m lab fit`` as a user types it."""

from __future__ import annotations

from click.testing import CliRunner

from lab.__main__ import main, run


def test_fit_lists_what_it_can_fit_without_loading_it() -> None:
    assert "kernels" in CliRunner().invoke(main, ["fit", "--help"]).output


def test_a_folder_that_is_not_there_is_exit_code_2() -> None:
    assert run(["score", "llm", "--data", "no_such_folder"]) == 2
