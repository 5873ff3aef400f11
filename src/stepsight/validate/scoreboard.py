"""The scoreboard: scores as a table, as JSON, and as files from which a long run is resumed and reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from stepsight.documents import to_json, write_whole
from stepsight.errors import InputError
from stepsight.score import Score

BAR_MISSED = 1
"""Exit code where a score does not clear its bar."""
LIVE, LIVE_COMMAND = "live", "stepsight validate live -p FOLDER --seed N --results results"


def show(scores: Sequence[Score], *, as_json: bool) -> None:
    """Print the scores; a missed bar is named as such and ends the command with code 1."""
    if as_json:
        click.echo(to_json(plain(scores)))
    else:
        table(scores)
    end(scores)


def plain(scores: Iterable[Score]) -> list[dict[str, object]]:
    """The scores as JSON has them."""
    return [msgspec.to_builtins(score) for score in scores]


def end(scores: Iterable[Score]) -> None:
    """End the command with code 1 where a bar is missed; a topic that prints by itself calls this last."""
    if any(score.met is False for score in scores):
        raise click.exceptions.Exit(BAR_MISSED)


def table(scores: Sequence[Score]) -> None:
    """The scores as a table, and how many bars are met."""
    from rich.text import Text

    from stepsight.terminal import listing, terminal

    figures = any(s.figure for s in scores)
    words = [*(["figure"] if figures else []), "bar", "", "rows used"]
    board = listing(("topic", "what", "rows", "GMAE", "MAPE", *words), (), left=("what", *words))
    for s in scores:
        verdict = Text("missed", style="red") if s.met is False else s.verdict
        note = f"{s.rows_used}; {s.note}" if s.note else s.rows_used
        errors = ("" if error is None else f"{100 * error:.2f} %" for error in (s.gmae, s.mape))
        figure = [str(s.figure or "")] if figures else []
        board.add_row(s.topic, s.name, str(s.rows), *errors, *figure, s.target, verdict, note)
    terminal().print(board)
    judged = [s for s in scores if s.met is not None]
    if judged:
        click.echo(f"{sum(bool(s.met) for s in judged)} of {len(judged)} bars met")
    undecided = sum(s.verdict == "open" for s in scores)
    if undecided:
        click.echo(f"{undecided} open: the rows are too few to decide")


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What one topic's command found."""

    topic: str
    command: str
    seconds: float
    scores: tuple[Score, ...] = ()

    @property
    def missed(self) -> int:
        return sum(score.met is False for score in self.scores)


def save_result(folder: Path, result: TopicResult) -> Path:
    """Write ``folder/TOPIC.json`` whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.topic}.json"
    write_whole(path, to_json(result))
    return path


def load_result(path: Path) -> TopicResult:
    """Read what `save_result` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TopicResult)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be read ({error.strerror})", "run `python -m lab score all`"
        ) from None
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"is no result of a topic ({error})", "run the topic again") from None


def add_draw(folder: Path, platform: str, seed: int, lines: Sequence[Score], seconds: float) -> Path:
    """Put the lines of a live draw into the folder's result; those of the same draw are replaced."""
    path = folder / f"{LIVE}.json"
    before = load_result(path) if path.is_file() else TopicResult(LIVE, LIVE_COMMAND, 0.0)
    named = {f"draw {seed} on {platform}, {line.name}": line for line in lines}
    kept = [line for line in before.scores if line.name not in named]
    new = [replace(line, name=name, exposure="blind") for name, line in named.items()]
    return save_result(folder, TopicResult(LIVE, LIVE_COMMAND, before.seconds + seconds, (*kept, *new)))
