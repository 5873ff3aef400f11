"""The command line. Each command lives in ``stepsight.commands`` and loads when called."""

from __future__ import annotations

import difflib
import errno
import importlib
import shlex
import sys

import click

from stepsight.errors import ScriptFailedError, StepsightError
from stepsight.processes import end_tidily_on_signals
from stepsight.terminal import COMMAND_LINE, ReaderGoneError, open_streams

COMMANDS = {
    "predict": "Predict the step time of a workload or a trace on a platform.",
    "capture": "Predict any PyTorch training script: run it here without a GPU.",
    "compare": "Two predictions: which is faster, and where the difference went.",
    "tune": "Find the best configuration of a model on a platform, with reasons.",
    "advise": "Changes that make a job faster or make it fit, each one simulated.",
    "diagnose": "A measured step: is it slower than it should be, and why.",
    "sweep": "Predict over any field of a workload or platform: a table, a CSV, a page.",
    "shard": "Choose where the embedding tables live.",
    "kernel": "Time one kernel, or a table of kernels, on a GPU.",
    "collective": "Time a collective, or import measured ones.",
    "calibrate": "Measure this machine, or learn a cluster from its own runs.",
    "run": "Train a workload on this machine and report the measured step time.",
    "validate": "Score predictions against measurements.",
    "inspect": "Analyse traces or index files.",
    "recipes": "List what training stacks do by default, or show one.",
    "platforms": "List the platforms and GPUs of the catalogue.",
}
HOMES = {
    "capture": "predict", "collective": "kernel", "advise": "compare", "diagnose": "compare",
    "recipes": "platforms", "run": "calibrate", "sweep": "tune",
}  # fmt: skip
"""Commands that share the module of another one."""

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""A disk, or what a process may write, is full."""
OPTIONAL_PACKAGES = ("torch", "pyarrow", "ray")
"""What only some commands import; without it they say so."""


class LazyCommands(click.Group):
    """Shows every command's help line without importing any of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[COMMAND_LINE] = shlex.join(["stepsight", *args])
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = difflib.get_close_matches(args[0], COMMANDS, 1) if args else []
        if close and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}; did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        home, name = (HOMES[cmd_name], cmd_name) if cmd_name in HOMES else (cmd_name, "command")
        command = getattr(importlib.import_module(f"stepsight.commands.{home}"), name)
        if not isinstance(command, click.Command):  # a broken command module, not a user's mistake
            raise TypeError(f"stepsight.commands.{home}.{name} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stepsight")
def cli() -> None:
    """How long a training step takes on GPUs you don't have, and why."""


def main() -> None:
    """Entry point: a user's mistake is one clear line and exit code 2, never a traceback."""
    open_streams()
    end_tidily_on_signals()
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except ReaderGoneError:
        sys.exit(0)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stepsight: interrupted", err=True)
        sys.exit(130)
    except ScriptFailedError as error:
        click.echo(f"stepsight: {error}", err=True)
        sys.exit(error.code or 1)
    except StepsightError as error:
        click.echo(f"stepsight: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = str(error.filename or "")
            click.echo(f"stepsight: {name[:60]}… is longer than a file's name can be; shorten it", err=True)
            sys.exit(2)
        if error.errno not in FULL and "temporary directory" not in str(error):
            raise
        click.echo(f"stepsight: {error.strerror or error}; free some space, or set TMPDIR", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL_PACKAGES:
            raise
        click.echo(
            f"stepsight: this needs {package}, which is not installed; pip install {package}", err=True
        )
        sys.exit(2)
