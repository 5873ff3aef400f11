"""Search and selection in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepsight.prediction.answer import Prediction
from stepsight.report.prediction import page

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
