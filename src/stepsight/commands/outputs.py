"""What commands share when they print and write: the command line, output paths, pages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from stepsight.documents import write_whole
from stepsight.errors import InputError

COMMAND_LINE = "stepsight.command_line"
"""Where the entry point keeps what was typed (`click.Context.meta`)."""


def command_line() -> str:
    """The command as it was typed, for the foot of a page; empty when called from Python."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(COMMAND_LINE, "")) if context else ""


def check_outputs(files: Iterable[Path | None], folders: Iterable[Path | None] = ()) -> None:
    """Refuse before anything is computed what could not be written after."""
    for path in folders:
        if path and path.exists() and not path.is_dir():
            raise InputError(str(path), "is a file", "name a folder")
        if path and not path.is_dir() and not path.absolute().parent.is_dir():
            raise InputError(str(path), "its folder does not exist", "make the folder first")
    for path in files:
        if path and not path.absolute().parent.is_dir():
            raise InputError(str(path), "its folder does not exist", "make the folder first")
        if path and path.is_dir():
            raise InputError(str(path), "is a folder", "name a file in it")
        if path and not os.access(path.absolute().parent, os.W_OK):
            raise InputError(str(path), "its folder cannot be written to", "choose another path")


def write_files(made: Iterable[tuple[Path | None, str | bytes]]) -> list[Path]:
    """Write each file whole; what was written, in order."""
    written = []
    for path, content in made:
        if path:
            write_whole(path, content)
            written.append(path)
    return written


def print_written(paths: Iterable[Path]) -> None:
    """Name the files that a command wrote."""
    for path in paths:
        click.echo(f"wrote {path}")
