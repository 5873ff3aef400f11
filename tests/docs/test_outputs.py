"""Outputs in the README and the guide are what the commands print (``scripts/refresh_outputs --check``)."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from .commands import ROOT, documents


def _script() -> ModuleType:
    loader = SourceFileLoader("refresh_outputs", str(ROOT / "scripts" / "refresh_outputs"))
    spec = spec_from_loader("refresh_outputs", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


SCRIPT = _script()


@pytest.mark.parametrize("page", SCRIPT.checked(), ids=lambda path: path.name)
def test_outputs_are_what_the_commands_print(page: Path) -> None:
    found = SCRIPT.differences(page)
    assert not found, "\n".join(["run scripts/refresh_outputs " + page.name, *found])


def test_pages_that_are_not_compared_exist() -> None:
    assert set(SCRIPT.STALE) <= {path.name for path in documents()}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_no_output_escapes_the_comparison(path: Path) -> None:
    """An output in a block without a language, or a command that is typed in one, would never be compared."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"^```sh\n(?:(?!```).*\n)*```\n+```\n", text, re.MULTILINE)
    assert not re.search(r"^```\n\$ stepsight", text, re.MULTILINE)


def test_the_table_of_routes_is_what_the_script_prints() -> None:
    asked = [sys.executable, str(ROOT / "benchmarks" / "routes.py")]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    rows = {row.replace("| all three |", "") for row in table if row.startswith("| all three |")}
    assert {re.sub(r"^\|[^|]+\|", "", row) for row in printed[2:]} == rows and len(printed) == 2 + 3 * len(
        rows
    )


def page(folder: Path, output: str, command: str = "stepsight platforms hopper") -> Path:
    path = folder / "page.md"
    path.write_text(f"# A page\n\n```sh\n{command}\n```\n\n```text\n{output}\n```\n", encoding="utf-8")
    return path


def test_an_output_that_differs_is_exit_code_1_and_a_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = page(tmp_path, "another platform\n…")
    before = path.read_text()
    monkeypatch.setattr(SCRIPT, "documents", lambda: [path])
    monkeypatch.setattr(sys, "argv", ["refresh_outputs", "--check", "page.md"])
    assert SCRIPT.main() == 1
    shown = capsys.readouterr().out
    assert "-another platform" in shown and "page.md:3, printed" in shown
    assert path.read_text() == before


def test_what_is_replaced_is_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = page(tmp_path, "another platform\nand one more\n…")
    monkeypatch.setattr(SCRIPT, "documents", lambda: [path])
    monkeypatch.setattr(sys, "argv", ["refresh_outputs"])
    assert SCRIPT.main() == 0
    monkeypatch.setattr(sys, "argv", ["refresh_outputs", "--check"])
    assert SCRIPT.main() == 0
    assert path.read_text().count("\n") == 11
    assert "every output is as documented" in capsys.readouterr().out


def test_a_command_that_fails_differs(tmp_path: Path) -> None:
    assert any("failed" in line for line in SCRIPT.differences(page(tmp_path, "x", "stepsight nothing")))


def test_mistakes_and_python_are_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "```text\n$ stepsight kernel gemm --gpu nothing\nstepsight: …\n```\n\n"
        "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    )
    assert [line for line in SCRIPT.differences(path) if line[:2] in ("-3", "+2")] == ["-3", "+2"]


@pytest.mark.parametrize(
    ("shown", "now", "same"),
    [
        (["a", "b"], ["a", "b  "], True),
        (["a"], ["a", "b"], False),
        (["a", "…"], ["a", "b", "c"], True),
        (["a", "…", "c"], ["a", "b", "b", "c"], True),
        (["a", "…", "c"], ["a", "b"], False),
        (["a long …"], ["a long line"], True),
        (["done in 8.1 s"], ["done in 12.4 s"], True),
        (["step 8.1 ms"], ["step 8.2 ms"], False),
    ],
)
def test_what_counts_as_the_same(shown: list[str], now: list[str], same: bool) -> None:
    assert SCRIPT.matches(shown, now) is same


def test_the_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
