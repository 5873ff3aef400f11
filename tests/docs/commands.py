"""Commands and outputs in the documents.

A ```text fence right after a ```sh or ```python one is its output; one that begins with "$ stepsight" holds
both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^```text\n\$ (?P<typed>stepsight (?:[^\n]*\\\n)*[^\n]*)\n(?P<answer>.*?)^```"
    r"|(?P<skip><!-- not run: (?P<why>[^>]*?) -->\n+)?^```(?P<language>sh|python)\n(?P<body>.*?)^```"
    r"(?:\n\n```text\n(?P<output>.*?)^```)?",
    re.DOTALL | re.MULTILINE,
)
SETTING_UP = (
    "python3 ", "pip ", ".venv/bin/pip", "scripts/", "source ", ". ", "cd ", "eval ", "export ", "#",
)  # fmt: skip
"""Lines that set an environment up; the test runs in one that is set up."""


@dataclass(frozen=True, slots=True)
class Fence:
    """One ```sh block of a document, or another with an output. ``why`` is set where it is not run;
    ``commands`` are those of a shell."""

    file: str
    line: int
    commands: tuple[str, ...]
    why: str
    output: str | None
    span: tuple[int, int]
    """Where the output stands in the document."""
    language: str = "sh"
    """sh, python, or console: a command and all that it prints, mistakes included."""
    source: tuple[str, ...] = ()


def documents() -> list[Path]:
    """The README and every page of the guide."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def fences(path: Path) -> Iterator[Fence]:
    """All ```sh blocks of a document, and others that show an output."""
    text = path.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        where = text.count("\n", 0, match.start()) + 1
        if match["typed"]:
            command = (" ".join(match["typed"].replace("\\\n", " ").split()),)
            yield Fence(path.name, where, command, "", match["answer"], match.span("answer"), "console")
            continue
        language, output, body = match["language"], match["output"], match["body"]
        joined = body.replace("\\\n", " ") if language == "sh" else ""
        lines = tuple(line.strip() for line in joined.splitlines() if line.strip())
        if language == "sh" or output is not None:
            yield Fence(
                path.name, where, lines, match["why"] or "", output, match.span("output"), language,
                tuple(body.splitlines()),
            )  # fmt: skip


def of_stepsight(line: str) -> str | None:
    """The arguments of a stepsight command, or None for a line that sets something up."""
    plain = line.removeprefix(".venv/bin/").partition(" | ")[0].partition(" > ")[0].partition("  #")[0]
    if plain.startswith("stepsight "):
        return plain.removeprefix("stepsight ")
    if plain.startswith(SETTING_UP):
        return None
    raise AssertionError(f"{line!r} is neither a stepsight command nor set-up; use ```text")


def inline(path: Path) -> list[str]:
    """Commands inside a sentence or a table that can be run as they stand: those on an example."""
    found = re.findall(r"`(stepsight [^`]*)`", path.read_text(encoding="utf-8"))
    return [line for line in found if "examples/" in line or "--show" in line]
