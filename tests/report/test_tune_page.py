"""The page of a search: two configurations at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepsight.report.page.search import choices, tune_page, two_picks
from stepsight.tune.answer import Answer
from stepsight.tune.trial import Row

CHOOSE = """
const menu = document.getElementById("pick-other");
menu.value = arguments[0]; menu.dispatchEvent(new Event("change"));
return document.querySelector("#picks tbody").innerText;
"""


def row(tensor: int, ms: float, memory_gb: float, **shares: float) -> Row:
    return Row(
        {"parallel.tensor": tensor}, "8xH100-SXM", step_time_us=1e3 * ms, samples_per_s=1e3 / ms,
        memory_gb=memory_gb, fit=1.0, shares=shares,
    )  # fmt: skip


def answer(*rows: Row) -> Answer:
    return Answer(
        workload="m.toml", platform="8xH100-SXM", objective="time", top=rows[:2], ties=(), maybe=None,
        neighbours=(), front=rows, rows=rows, counts={}, refused={}, dimensions={}, document={},
    )  # fmt: skip


FOUND = answer(
    row(1, 100, 60, gemm=0.9, host_bound_idle=0.1),
    row(2, 120, 30, gemm=0.75, waiting_for_ranks=0.25),
    row(4, 150, 15),
)


def test_the_best_and_the_front_can_be_chosen_each_once() -> None:
    assert [r.settings["parallel.tensor"] for r in choices(FOUND)] == [1, 2, 4]


def test_the_first_two_are_compared_by_what_differs_most() -> None:
    shown = two_picks(FOUND)
    assert "<td>tp</td>" in shown and "+20.0" in shown and "−30.0" in shown
    assert (
        shown.index("waiting for other ranks ms")
        < shown.index("waiting for the host ms")
        < shown.index("GEMM ms")
    )


def test_one_configuration_has_nothing_beside_it() -> None:
    assert "only one" in two_picks(answer(row(1, 100, 60)))


def test_another_pick_fills_the_table_anew(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "tune.html"
    path.write_text(tune_page(FOUND), encoding="utf-8")
    browser.get(path.as_uri())
    assert [m for m in browser.get_log("browser") if path.name in m["message"]] == []
    assert "−45.0" in browser.execute_script(CHOOSE, "2")
