"""``python -m lab``: fit what ships, and score it against published measurements."""

from __future__ import annotations

import sys

import click

from stepsight.errors import StepsightError


@click.group()
def main() -> None:
    """Fit the models that ship, and score them. Run from the root of the repository."""


def run() -> int:
    from lab.fit.commands.group import command as fit
    from lab.score.command import command as score

    main.add_command(fit, "fit")
    main.add_command(score, "score")
    try:
        code = main.main(prog_name="python -m lab", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (StepsightError, click.Abort) as error:
        click.echo(f"error: {error}", err=True)
        return 2
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(run())
