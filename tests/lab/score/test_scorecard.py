"""The scorecard: results survive as files, and the page sets other predictors beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.score.results import TopicResult, load_result, load_results, save_result
from lab.score.scorecard import scorecard
from stepsight.errors import InputError
from stepsight.score import Figure, Score
from stepsight.validate.quick import kernel_rows, scores, step_rows

OURS = Score("e2e", "steps", 12, 0.05, 0.07, "all rows", "GMAE ≤ 4.0%", False, exposure="blind")
THEIRS = Score(
    "e2e",
    "steps: NeuSight",
    12,
    0.06,
    0.09,
    "all rows",
    exposure="blind",
    predictor="NeuSight",
    same_rows_as="steps",
)
RESULT = TopicResult("e2e", "python -m lab score e2e", 3.0, (OURS, THEIRS))


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    assert load_result(save_result(tmp_path, RESULT)) == RESULT
    assert load_results(tmp_path, ["kernels", "e2e"]) == [RESULT]


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "e2e.json").write_text("[]")
    with pytest.raises(InputError, match=r"e2e\.json.*no result"):
        load_results(tmp_path, [])


def test_the_page_has_rows_errors_bars_others_and_how_blind_it_was(tmp_path: Path) -> None:
    (tmp_path / "e2e.md").write_text("What is missed, and why.")
    page = scorecard([RESULT], notes=tmp_path)
    line = next(line for line in page.splitlines() if line.startswith("| steps"))
    assert "| 12 | 5.0 % | 7.0 % |" in line
    assert "**missed**" in line
    assert "NeuSight 6.0 % / 9.0 %" in line
    assert "blind" in line
    assert "What is missed, and why." in page
    assert "0 of 1 bars are met" in page


def test_parts_of_our_own_table_are_lines_with_their_bars() -> None:
    whole = Score("llm", "a.csv", 9, 0.05, 0.07, "all", exposure="chosen")
    part = Score("llm", "a.csv: b.csv", 4, 0.03, 0.04, "all", "MAPE ≤ 8%", True, exposure="chosen")
    page = scorecard([TopicResult("llm", "c", 1.0, (whole, part))])
    assert "| a.csv: b.csv (all) | 4 | 3.0 % | 4.0 % | MAPE ≤ 8 %: met |  | seen while tuning |" in page
    assert "| a.csv (all) | 9 | 5.0 % | 7.0 % |  |  | seen while tuning |" in page


def test_missed_bars_are_listed_at_the_top() -> None:
    top = scorecard([RESULT]).partition("## e2e")[0]
    assert "0 of 1 bars are met; missed:" in top
    assert "- e2e: steps, 5.0 % / 7.0 % (GMAE ≤ 4.0 %)" in top


def test_a_figure_stands_in_a_column_of_its_own() -> None:
    line = Score.reading(
        "tune", "a.csv", 5, Figure("mean regret", 0.077), "groups", target="≤ 5%", met=False, exposure="fit"
    )
    page = scorecard([TopicResult("tune", "c", 1.0, (line,))])
    assert "| what | rows | GMAE | MAPE | figure | bar |" in page
    assert "| a.csv (groups) | 5 |  |  | mean regret 7.7 % | ≤ 5 %: **missed** |  | fitted |" in page


def test_quick_needs_no_data_and_every_row_has_its_source_and_licence() -> None:
    for row in (*kernel_rows(), *step_rows()):
        assert row.source
        assert row.licence in ("Apache-2.0", "BSD-3-Clause", "MIT")
    found = scores()
    assert sum(score.rows for score in found) == len(kernel_rows()) + len(step_rows())
    assert all(score.gmae < 0.2 for score in found if score.exposure == "blind")


def test_all_saves_resumes_and_reports(tmp_path: Path) -> None:
    run = CliRunner()
    results, page = str(tmp_path / "validation"), tmp_path / "accuracy.md"
    first = run.invoke(main, ["score", "all", "--only", "quick", "--results", results])
    assert first.exit_code == 0, first.output
    again = run.invoke(main, ["score", "all", "--only", "quick", "--results", results, "--resume"])
    assert "taken from" in again.stderr
    report = run.invoke(main, ["score", "--report", str(page), "--results", results])
    assert report.exit_code == 0, report.output
    assert "## quick" in page.read_text()


def test_a_missed_bar_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepsight.validate.quick.scores", lambda: [OURS])
    assert CliRunner().invoke(main, ["score", "quick"]).exit_code == 1


def test_without_the_measured_tables_the_rows_that_ship_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSIGHT_DATA", str(tmp_path / "nowhere"))
    done = CliRunner().invoke(main, ["score", "all", "--results", str(tmp_path / "validation")])
    assert done.exit_code == 0, done.output
    assert "only the rows that ship" in done.stderr
