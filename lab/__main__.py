"""``python -m lab``: fit what ships, and score it against published measurements."""

from __future__ import annotations

import sys

import click

from lab.fit.command import command as fit
from lab.score.command import command as score
from lab.score.gate import command as gate
from stepsight.errors import StepsightError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Fit the models that ship, and score them. Run from the root of the repository."""


for name, found in (("fit", fit), ("score", score), ("gate", gate)):
    main.add_command(found, name)


def run(arguments: list[str] | None = None) -> int:
    """The exit code: 1 where a bar is missed, 2 for a mistake of the caller, named in one line."""
    try:
        code = main.main(arguments, prog_name="python -m lab", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("lab: interrupted", err=True)
        return 130
    except StepsightError as error:
        click.echo(f"lab: {error}", err=True)
        return 2
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(run())
