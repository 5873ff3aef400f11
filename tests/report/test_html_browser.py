"""The page in a real browser: it runs without an error, shows the number, and answers the pointer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepsight.prediction.answer import Prediction
from stepsight.prediction.display import time
from stepsight.report.prediction import page

POINT = """
const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
for (let x = 100; x < box.width; x += 7) {
  const where = {clientX: box.left + x, clientY: box.top + arguments[0]};
  canvas.dispatchEvent(new PointerEvent("pointermove", where));
  const tip = document.querySelector(".tip");
  if (!tip.hidden) return tip.innerText;
}
return "";
"""
PRESS = """
document.querySelector("canvas").dispatchEvent(new KeyboardEvent("keydown", {key: arguments[0]}));
"""
PAINTED = """
const done = arguments[arguments.length - 1], canvas = document.querySelector("canvas");
requestAnimationFrame(() => requestAnimationFrame(() => done(canvas.toDataURL())));
"""
COMPUTE_ROW_Y = 26 + 18 + 16 + 3 + 10
"""Below the ruler, the rank's name and the host's row."""


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Any:
    """Opens a prediction's page at a width, in a colour scheme; the browser must not complain."""

    def show(prediction: Prediction, *, width: int = 1300, scheme: str = "light") -> Any:
        path = tmp_path / "page.html"
        path.write_text(page(prediction), encoding="utf-8")
        browser.get_log("browser")
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(path.as_uri())
        assert browser.get_log("browser") == []
        return browser

    yield show
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_number_is_what_one_sees_first(dlrm: Prediction, shown: Any) -> None:
    number = shown(dlrm).find_element("class name", "number")
    assert number.is_displayed()
    assert number.text.startswith(time(dlrm.step_time_us).split()[0])
    assert number.location["y"] < 300


def test_nothing_is_fetched(dlrm: Prediction, shown: Any) -> None:
    assert shown(dlrm).execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 400, 1000, 1600])
def test_the_page_fits_any_width(waiting: Prediction, shown: Any, width: int, scheme: str) -> None:
    opened = shown(waiting, width=width, scheme=scheme)
    assert opened.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_it_follows_the_readers_colour_scheme(dlrm: Prediction, shown: Any) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = shown(dlrm, scheme="light").execute_script(ground)
    assert shown(dlrm, scheme="dark").execute_script(ground) != light


def test_pointing_at_a_kernel_says_what_it_is(waiting: Prediction, shown: Any) -> None:
    said = shown(waiting).execute_script(POINT, COMPUTE_ROW_Y)
    assert "linear" in said
    assert "launched by aten::linear" in said


def test_the_keyboard_zooms_and_comes_back(dlrm: Prediction, shown: Any) -> None:
    opened = shown(dlrm)
    before = opened.execute_async_script(PAINTED)
    opened.execute_script(PRESS, "+")
    nearer = opened.execute_async_script(PAINTED)
    opened.execute_script(PRESS, "0")
    assert nearer != before
    assert opened.execute_async_script(PAINTED) == before


def test_the_buttons_do_the_same(dlrm: Prediction, shown: Any) -> None:
    opened = shown(dlrm)
    before = opened.execute_async_script(PAINTED)
    opened.execute_script("document.querySelector('[data-do=in]').click()")
    assert opened.execute_async_script(PAINTED) != before


def test_everything_interactive_has_a_name(dlrm: Prediction, shown: Any) -> None:
    unnamed = shown(dlrm).execute_script(
        "return [...document.querySelectorAll('button, canvas, svg, [role=img]')]"
        ".filter((e) => !(e.getAttribute('aria-label') || e.innerText || '').trim()).length"
    )
    assert unnamed == 0
