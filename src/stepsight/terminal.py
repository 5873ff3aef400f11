"""The terminal: its width, its encoding, and text that nothing interprets.

Names come from traces and files, so nothing printed is interpreted: no markup, no emoji codes, no control
characters or escape sequences. A pipe or a file has no width, so lines are written whole.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from stepsight.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderHook
    from rich.table import Table

T = TypeVar("T")

COMMAND_LINE = "stepsight.command_line"
"""Where the entry point keeps what was typed (`click.Context.meta`): pages name it."""
UNBROKEN = 10_000
"""Columns of an output that is no terminal: nothing is wrapped or cut."""
PLAIN = {
    "µ": "u", "×": "x", "–": "-", "−": "-", "—": "-", "…": "...", "█": "#", "▏": "|", "≤": "<=", "≥": ">=",
    "→": "->", "±": "+-", "▲": "^", "·": "-", "é": "e", "’": "'", "✗": "x",
}  # fmt: skip
_HANDLER = "stepsight.plain"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but for tab and line feed; marks that change the writing direction."""


def counted(n: int, word: str) -> str:
    """1 run, 2 runs."""
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


class ReaderGoneError(Exception):
    """Whoever reads standard output (head, less) has seen enough."""


def terminal(*, stderr: bool = False) -> Console:
    """Where a command prints its tables."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    asked = os.environ.get("COLUMNS", "")
    known = stream.isatty() or (asked.isdigit() and int(asked) > 0)
    file: Any = Output(stream.stream, spelled_out=False) if isinstance(stream, Output) else stream
    width = None if known else UNBROKEN
    console = Console(highlight=False, markup=False, emoji=False, width=width, file=file)
    console.push_render_hook(cast("RenderHook", _SpellOut()))
    setattr(console, "on_broken_pipe", _reader_gone)  # noqa: B010 - rich would end the process with 1
    return console


def listing(
    titles: Sequence[str], rows: Iterable[Iterable[Any]], *, title: str = "", left: Sequence[str] = (),
    edge: bool = True,
) -> Table:  # fmt: skip
    """A table: the first column and those named in ``left`` stand left, all others right."""
    from rich.table import Table
    from rich.text import Text

    named = Text(title, no_wrap=True, overflow="ignore") if title else None
    table = Table(title=named, title_justify="left", box=None, padding=(0, 1), pad_edge=edge)
    for i, name in enumerate(titles):
        stands_left = i == 0 or name in left
        table.add_column(name, justify="left" if stands_left else "right", no_wrap=not stands_left)
    for row in rows:
        table.add_row(*row)
    return table


class _SpellOut:
    """Passes what a console prints through `readable`; the console's own colours stay."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_SpelledOut(r) for r in renderables]


class _SpelledOut:
    def __init__(self, renderable: Any) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for text, style, control in console.render(self.renderable, options):
            yield Segment(text if control else readable(text), style, control)


def _reader_gone() -> None:
    raise ReaderGoneError


def readable(text: str) -> str:
    """The text with control characters and changes of writing direction spelled out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Output:
    """Standard output or errors: what cannot be written is an error with a fix, and unless another layer has
    done so, control characters are spelled out."""

    def __init__(self, stream: TextIO, *, spelled_out: bool = True) -> None:
        self.stream, self._spelled_out = stream, spelled_out

    def write(self, text: str) -> int:
        if text == "":  # libraries try a stream so, and take an error for an answer
            return 0
        return self._tried(lambda: self.stream.write(readable(text) if self._spelled_out else text))

    def flush(self) -> None:
        self._tried(self.stream.flush)

    def _tried(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except BrokenPipeError:
            discard_output()
            raise ReaderGoneError from None
        except OSError as error:
            discard_output()
            raise InputError(
                "standard output", f"cannot be written ({error.strerror})", "free space, or write elsewhere"
            ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def open_streams() -> None:
    """Make standard output and errors writable: closed ones lead nowhere, control characters are spelled out,
    and encodings without µ or × get u and x."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
    speak_plainly_where_needed()
    sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr)


def discard_output() -> None:
    """Nothing more reaches standard output: its reader is gone or its disk is full."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def speak_plainly_where_needed() -> None:
    """Let terminals that cannot show µ or × show u and x instead of failing."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and "utf" not in (stream.encoding or "").lower():
            reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(c, "?") for c in lost), error.end
