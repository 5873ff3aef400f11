"""Every command of the README and of the guide works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from stepsight.cli import cli
from stepsight.report.pieces import markdown
from tests.fuzz.targets import SCRIPTS, TARGETS

from .commands import ROOT, Fence, documents, fences, inline, of_stepsight

FENCES = [fence for path in documents() for fence in fences(path) if fence.language == "sh"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it: the examples are there, and what earlier commands wrote."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.mark.parametrize("fence", FENCES, ids=lambda f: f"{f.file}:{f.line}")
def test_the_command_works(fence: Fence, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fence.why:
        pytest.skip(fence.why)
    monkeypatch.chdir(place)
    for line in fence.commands:
        arguments = of_stepsight(line)
        if arguments is None:
            continue
        done = CliRunner().invoke(cli, shlex.split(arguments), catch_exceptions=False)
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.stderr}"
        _keep(line, done.output, place)


@pytest.mark.parametrize("line", inline(ROOT / "README.md"))
def test_commands_inside_the_readmes_table_work(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = CliRunner().invoke(cli, shlex.split(of_stepsight(line) or ""), catch_exceptions=False)
    assert done.exit_code == 0, f"{line}\n{done.output}"


def _keep(line: str, output: str, place: Path) -> None:
    """What a command's output was sent to."""
    _, arrow, name = line.partition(" > ")
    if arrow:
        (place / name.strip()).write_text(output, encoding="utf-8")


def test_the_readme_shows_commands() -> None:
    assert sum(len(f.commands) for f in FENCES if f.file == "README.md") >= 5


def test_the_glossary_document_is_the_pages_glossary() -> None:
    assert (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8") == markdown()


def test_links_between_documents_lead_somewhere() -> None:
    for path in documents():
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_tests_and_fuzz_targets_that_the_limits_name_exist() -> None:
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    rows = [
        line.split(" | ") for line in text.partition("| what | test | fuzz |")[2].splitlines() if "`" in line
    ]
    rows = [cells for cells in rows if len(cells) == 3]
    assert len(rows) == 12
    known = {target.name for target in (*TARGETS, *SCRIPTS)} | {"--kills"}
    for what, tests, fuzz in rows:
        files = re.findall(r"`([^`]+)`", tests)
        assert files and all((ROOT / file).is_file() for file in files), what
        assert set(re.findall(r"`([^`]+)`", fuzz)) <= known, what


def test_the_limits_count_the_kinds_of_inputs_that_are_fuzzed() -> None:
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"good inputs of {len(TARGETS)} kinds" in text
