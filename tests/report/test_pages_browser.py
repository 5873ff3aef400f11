"""Search, selection, and pages of other commands in a real browser: 400 to 1,600 pixels, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepsight.prediction.answer import Prediction
from stepsight.prediction.compare import compare
from stepsight.report.pieces import Listing, Report
from stepsight.report.prediction import page
from stepsight.report.runs import comparison_page
from stepsight.report.search import sweep_page
from stepsight.tuning.trial import Row

from .predictions import uneven

FIND = """
const box = document.querySelector("#timeline input[type=search]");
box.value = arguments[0]; box.dispatchEvent(new Event("input"));
return document.querySelector("#timeline output").textContent;
"""
SELECT = """
const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
const at = (x) => ({clientX: box.left + x, clientY: box.top + 60, shiftKey: true, pointerId: 1});
canvas.setPointerCapture = () => {};
canvas.dispatchEvent(new PointerEvent("pointerdown", at(120)));
canvas.dispatchEvent(new PointerEvent("pointermove", at(600)));
canvas.dispatchEvent(new PointerEvent("pointerup", at(600)));
return document.querySelector(".chosen").innerText;
"""


WRONG = """
const wrong = [];
const outside = (e, box) => {
  const inner = e.getBoundingClientRect();
  return inner.right > box.right + 1 || inner.left < box.left - 1;
};
if (document.documentElement.scrollWidth > window.innerWidth) wrong.push("wider than the screen");
for (const e of document.querySelectorAll(".scroll"))
  if (e.scrollWidth > e.clientWidth + 1) wrong.push("a table scrolls");
for (const chart of document.querySelectorAll("svg.chart")) {
  const box = chart.getBoundingClientRect(), words = [...chart.querySelectorAll("text")];
  for (const e of words) if (outside(e, box)) wrong.push(e.textContent + " is cut");
  words.forEach((a, i) => words.slice(i + 1).forEach((b) => {
    const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
    if (p.left < q.right && q.left < p.right && p.top + 3 < q.bottom && q.top + 3 < p.bottom)
      wrong.push(a.textContent + " on " + b.textContent);
  }));
}
for (const e of document.querySelectorAll(".whole"))
  if (e.getClientRects().length > 1 || e.offsetHeight > 1.8 * parseFloat(getComputedStyle(e).lineHeight))
    wrong.push(e.textContent + " is broken");
return wrong;
"""


def pages(name: str, waiting: Prediction) -> str:
    if name == "compare":
        return comparison_page(compare(waiting, uneven([1024] * 4)))
    if name == "sweep":
        rows = [
            Row({"parallel.tensor": n}, "8xH100-SXM", step_time_us=9e5 / n, low_us=8e5 / n, high_us=1e6 / n,
                tokens_per_s=1e4 * n)
            for n in (1, 2, 4, 8)
        ]  # fmt: skip
        return sweep_page(rows, "a model")
    why = "exposed FSDP/ZeRO communication +4.5 %, vector +1.7 %, GEMM −0.6 %"
    titles = ("#", "configuration", "step ms", "memory", "fits", "why")
    line = ("1", "tp 1, zero 2, mbs 2, dp 16", "1,937", "68 of 82 GB", ">99 %", why)
    command = (
        "stepsight predict x.toml -p 2x8xH100-SXM-400G --set framework=torchtitan --set tp=1 --set zero=2"
    )
    return Report(
        "a search", (), (Listing("the best", titles, [line], ("configuration", "why"), below=[command]),)
    ).page()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1000, 1600])
@pytest.mark.parametrize("name", ["compare", "sweep", "report"])
def test_nothing_is_cut_or_overlaps(
    name: str, width: int, scheme: str, waiting: Prediction, browser: Any, tmp_path: Path
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    wrong = opened(browser, tmp_path, pages(name, waiting), width).execute_script(WRONG)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert wrong == []


def opened(browser: Any, folder: Path, content: str, width: int = 1280) -> Any:
    path = folder / "page.html"
    path.write_text(content, encoding="utf-8")
    browser.get_log("browser")
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    return browser


def test_a_kernel_is_found_by_name_and_counted(waiting: Prediction, browser: Any, tmp_path: Path) -> None:
    found = opened(browser, tmp_path, page(waiting)).execute_script(FIND, "linear")
    assert "slices" in found
    assert "on the device" in found
    assert browser.execute_script(FIND, "no such kernel") == "no such name"


def test_a_selection_says_how_busy_the_streams_were(
    waiting: Prediction, browser: Any, tmp_path: Path
) -> None:
    said = opened(browser, tmp_path, page(waiting)).execute_script(SELECT)
    assert said.startswith("Selected ")
    assert "% busy" in said
