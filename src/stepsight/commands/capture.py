"""``stepsight capture``: run a training script without a GPU, and predict its step."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.commands import options
from stepsight.errors import InputError

RANKS_HELP = (
    "Which ranks to capture: auto, all, or numbers as in 0,7. The others behave like their counterpart."
)
SCRIPT_FIX = "pass the script its own arguments after --"


@click.command("capture", context_settings={"ignore_unknown_options": True})
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@options.platform()
@click.option(
    "--world",
    "-w",
    type=click.IntRange(min=1),
    help="Ranks of the job; all GPUs of the platform by default.",
)
@click.option("--module", "-m", is_flag=True, help="SCRIPT is a module, as with python -m.")
@options.path("--save", "Write the captured step here (step.json).")
@options.json_flag
@options.timeline
@options.path("--html", "Write a page that explains the step here.")
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Steps to record.")
@click.option(
    "--warmup",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Steps to run before recording.",
)
@click.option(
    "--assume", multiple=True, metavar="NAME=VALUE", help="Assume a value that only a GPU would compute."
)
@click.option(
    "--batch", type=click.IntRange(min=1),
    help="Samples per step of the whole job; read off the model's input by default.",
)  # fmt: skip
@click.option("--ranks", "which", default="auto", show_default=True, help=RANKS_HELP)
@options.fields(options.PLATFORM_SET_HELP)
def command(
    script: str, arguments: tuple[str, ...], platform: str, world: int | None, module: bool,
    save: Path | None, as_json: bool, timeline: Path | None, html: Path | None, steps: int, warmup: int,
    assume: tuple[str, ...], batch: int | None, which: str, assignments: tuple[str, ...],
) -> None:  # fmt: skip
    """Run SCRIPT (any PyTorch training script) on this machine, which needs no GPU, and predict its step.

    Options that this command does not know go to the script; so does everything after --.
    """
    from stepsight.capturing.api import capture
    from stepsight.commands.predict import deliver, with_remedies
    from stepsight.platform.load import load_platform
    from stepsight.prediction.predict import predict_captured

    options.check_outputs((save, timeline, html))
    chosen = load_platform(platform, options.platform_assignments(assignments, "a script", SCRIPT_FIX))
    size = world or chosen.spec.ranks
    captured = capture(
        script, chosen, arguments=arguments, world=size, module=module, warmup=warmup, steps=steps,
        assume=assume, batch=batch, ranks=_ranks(which, size),
        progress=lambda text: click.echo(f"stepsight: {text}", err=True),
    )  # fmt: skip
    if save:
        from stepsight.capturing.step import save_step

        save_step(captured, save)
    prediction = with_remedies(predict_captured(captured, chosen), captured, chosen)
    deliver(prediction, as_json=as_json, timeline=timeline, html=html)
    if save and not as_json:
        options.print_written([save])


def _ranks(which: str, world: int) -> list[int] | None:
    if which == "auto":
        return None
    if which == "all":
        return list(range(world))
    try:
        return sorted({int(part) for part in which.split(",")})
    except ValueError:
        raise InputError(f"--ranks {which}", "is not auto, all or numbers", "write --ranks 0,7") from None
