"""``stepsight predict``: the step time of a workload, and why; ``capture``: that of any training script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepsight.commands import options
from stepsight.errors import InputError
from stepsight.platform.load import Platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.whole_run import RunPlan, WholeRun, whole_run

if TYPE_CHECKING:
    from rich.console import Console

    from stepsight.capturing.step import CapturedStep

DOES_NOT_FIT = 3
"""Exit code of ``--must-fit`` for a job that does not fit."""
MOST_REMEDIES = 3
PRICE_HELP = "Price per GPU-hour; by default the platform's."
TRACE_HELP = "Predict from traces instead: files or folders of one run."
MUST_FIT_HELP = f"Exit with code {DOES_NOT_FIT} if a rank runs out of GPU memory."


@click.command("predict")
@click.argument("workload", required=False, type=click.Path(path_type=Path))
@click.option("--model", "model", help=options.MODEL_HELP)
@options.platform(required=False)
@options.recipe
@options.fields()
@click.option("--tables", help="Of a DLRM: take its tables from a CSV or an EmbeddingBagConfig JSON.")
@options.path("--trace", TRACE_HELP, "trace", multiple=True)
@click.option("--replay", is_flag=True, help="With --trace: take the trace's own durations.")
@click.option("--models-only", is_flag=True, help=options.MODELS_ONLY_HELP)
@click.option("--must-fit", is_flag=True, help=MUST_FIT_HELP)
@click.option("--tokens", type=options.count, help="Plan a whole run of this many tokens: 15e12, 15T, 300B.")
@click.option("--samples", type=options.count, help="Plan a whole run of this many samples.")
@click.option("--steps", type=options.count, help="Plan a whole run of this many optimizer steps.")
@click.option("--epochs", type=float, help="Plan a whole run of this many epochs (with --epoch-samples).")
@click.option("--epoch-samples", type=options.count, help="Samples of an epoch.")
@click.option("--price", "price_per_gpu_hour", type=float, help=PRICE_HELP)
@click.option("--carbon", type=float, help="Carbon intensity of the grid in g CO2 per kWh.")
@click.option("--mtbf-hours", type=float, help="Mean time between failures of the whole job.")
@click.option("--checkpoint-seconds", type=float, help="How long training stops for a checkpoint.")
@click.option("--restart-seconds", type=float, help="From a failure to training again (default 300).")
@click.option("--explain", is_flag=True, help="List every setting of the workload with where it came from.")
@options.json_flag
@options.timeline
@options.path("--chakra", "Write Chakra .et files, one per rank, to this folder.")
@options.path("--html", "Write a page that explains the step here.")
def command(
    workload: Path | None, model: str | None, platform: str | None, recipe: str | None,
    assignments: tuple[str, ...], tables: str | None, trace: tuple[Path, ...],
    replay: bool, models_only: bool, must_fit: bool, explain: bool, as_json: bool, timeline: Path | None,
    chakra: Path | None, html: Path | None, carbon: float | None, **asked: float | None,
) -> None:  # fmt: skip
    """Predict the step time of WORKLOAD, or of the step in a --trace, on a platform.

    WORKLOAD is a TOML file, a Hugging Face config.json (or a folder with one), a captured step.json, or the
    name of a well-known model such as llama3-8b.
    """
    if bool(workload) + bool(trace) + bool(model) != 1:
        raise click.UsageError("give exactly one of WORKLOAD, --model and --trace")
    if explain:
        _explain(model or workload, platform, recipe, assignments, as_json)
        return
    options.check_outputs((timeline, html), folders=(chakra,))
    given = {name: value for name, value in asked.items() if value is not None}
    plan = RunPlan(**given) if given else None
    if recipe:
        assignments = (f"training.recipe={recipe}", *assignments)
    if replay and models_only:
        raise click.UsageError(
            "--replay takes every time from the trace, --models-only from the models: give one"
        )
    if tables is not None and workload is None:
        raise click.UsageError("--tables needs WORKLOAD, the file of a DLRM")
    if trace:
        from stepsight.prediction.traced.predict import predict_trace

        changes = options.platform_assignments(
            assignments, "a trace", "use a --what-if of `stepsight compare`"
        )
        prediction = predict_trace(trace, platform, replay=replay, models_only=models_only, overrides=changes)
    else:
        if replay:
            raise click.UsageError("--replay needs --trace")
        if models_only:
            raise click.UsageError("--models-only needs --trace")
        prediction = predict_file(workload or Path(), platform, assignments, model, tables)
    prediction = _with_carbon(prediction, carbon)
    run = whole_run(prediction, plan) if plan else None
    deliver(prediction, as_json=as_json, timeline=timeline, chakra=chakra, html=html, run=run)
    if must_fit and prediction.fits is False:
        raise click.exceptions.Exit(DOES_NOT_FIT)


def _with_carbon(prediction: Prediction, carbon: float | None) -> Prediction:
    """With the grid's carbon intensity, refused where the energy is not known."""
    if carbon is None:
        return prediction
    if not 0 <= carbon < float("inf"):
        raise InputError("--carbon", f"is {carbon:g}", "give grams of CO2 per kWh")
    if prediction.energy is None:
        raise InputError("--carbon", "has no effect: the power of this GPU is not known", "state gpu.power_w")
    return replace(prediction, carbon_g_per_kwh=carbon)


def _explain(
    workload: str | Path | None, platform: str | None, recipe: str | None, assignments: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    from stepsight.capturing.step import is_step_file

    if workload is None or is_step_file(Path(workload)):
        raise click.UsageError(
            "--explain is about a workload file, a config.json or a model: a trace has no settings"
        )
    import msgspec

    from stepsight.documents import to_json
    from stepsight.platform.load import load_platform
    from stepsight.terminal import listing, terminal
    from stepsight.workload.settings import settings

    chosen = [f"training.recipe={recipe}"] if recipe else []
    on_workload, on_platform = options.split_assignments(assignments)
    if not platform:
        raise click.UsageError("--platform is missing; `stepsight platforms` lists what there is")
    spec = load_platform(platform, on_platform).spec
    found = settings(workload, spec, [*chosen, *on_workload], on_platform)
    if as_json:
        click.echo(to_json([msgspec.to_builtins(one, enc_hook=str) for one in found]))
        return
    titles, rows = (
        ("setting", "value", "from"),
        [(one.name, options.value_text(one.value), one.origin) for one in found],
    )
    terminal().print(listing(titles, rows, left=titles, edge=False))


def predict_file(
    workload: Path, platform: str | None, assignments: tuple[str, ...], model: str | None = None,
    tables: str | None = None,
) -> Prediction:  # fmt: skip
    """Load both sides and predict; ``platform.…`` assignments go to the platform."""
    from stepsight.capturing.step import is_step_file, load_step
    from stepsight.platform.load import load_platform
    from stepsight.prediction.predict import predict
    from stepsight.workload.files import load_model, load_workload

    if not platform:
        raise click.UsageError("--platform is missing; `stepsight platforms` lists what there is")
    on_workload, on_platform = options.split_assignments(assignments)
    if model and is_step_file(Path(model)):
        workload, model = Path(model), None
    if model:
        here = load_platform(platform, on_platform)
        return with_remedies(predict(load_model(model, on_workload), here), model, here, on_workload)
    if is_step_file(workload) and tables is None:
        here = load_platform(platform, options.captured_assignments(assignments))
        step = load_step(workload).over(here.spec.ranks)
        return with_remedies(predict(step, here), step, here)
    here, loaded = load_platform(platform, on_platform), load_workload(workload, on_workload, tables=tables)
    if tables is not None:  # which no remedy is tried for: they are not in the file
        return predict(loaded, here)
    return with_remedies(predict(loaded, here), workload, here, on_workload)


def with_remedies(
    p: Prediction, workload: str | Path | CapturedStep, platform: Platform, assignments: Sequence[str] = ()
) -> Prediction:
    """Where a job does not fit: changes that make it fit, each tried, as options or as code."""
    if p.fits is not False:
        return p
    from stepsight.prediction.advice import advise
    from stepsight.prediction.display import change, size, time

    found = advise(workload, platform, assignments=assignments)
    tried = [
        f"{one.set_line or one.code}  ({f'{time(one.step_us)} per step, ' if one.set_line else ''}"
        f"{change(one.gain, 1)} samples/s, {size(one.memory_bytes or 0.0)}{_doubt(p, one.memory_bytes)})"
        for one in found.changes
        if one.fits
    ][:MOST_REMEDIES]
    if found.more_gpus or not tried:
        tried += found.notes or p.what_would_help
    if p.language is not None and len(tried) < MOST_REMEDIES:
        sets = "".join(f" --set {shlex.quote(one)}" for one in assignments)
        on = found.more_gpus or p.platform
        tried.append(f"search all layouts: stepsight tune {workload} -p {on}{sets}")
    return replace(p, remedies=tuple(tried))


def _doubt(p: Prediction, held: float | None) -> str:
    """How likely a remedy fits, where that is not sure."""
    from stepsight.prediction.memory import fit_probability
    from stepsight.tuning.search import SURE

    likely = fit_probability(held, p.memory.usable_bytes) if held and p.memory else 1.0
    return "" if likely >= SURE else f", fits with {100 * likely:.0f} %"


def deliver(
    prediction: Prediction, *, as_json: bool, timeline: Path | None = None, chakra: Path | None = None,
    html: Path | None = None, run: WholeRun | None = None,
) -> None:  # fmt: skip
    """Write the files, then print the answer, with the whole run where one was asked for."""
    from stepsight.prediction.runnable import precision_warning
    from stepsight.report.perfetto import chrome_trace
    from stepsight.report.prediction import page, show

    def shown(console: Console) -> None:
        if warning := precision_warning(prediction):
            click.echo(f"warning: {warning}", err=True)
        show(prediction, console, run)

    if chakra:
        from stepsight.report.chakra import export_chakra, left_out

        export_chakra(prediction.timeline, chakra, ranks=len(prediction.ranks))
        if missing := left_out(prediction.timeline, len(prediction.ranks)):
            click.echo(f"warning: {chakra} leaves out {missing}", err=True)
    options.deliver(
        lambda: prediction.to_dict() | ({"whole_run": run.to_dict()} if run else {}), shown,
        (timeline, lambda: chrome_trace(prediction)), (html, lambda: page(prediction, run=run)),
        as_json=as_json,
    )  # fmt: skip
    if chakra and not as_json:
        options.print_written([chakra])


RANKS_HELP = (
    "Which ranks to capture: auto, all, or numbers as in 0,7. The others behave like their counterpart."
)
ASSUME_HELP = "Assume a value that only a GPU would compute."
BATCH_HELP = "Samples per step of the whole job; read off the model's input by default."
SCRIPT_FIX = "pass the script its own arguments after --"


@click.command("capture", context_settings={"ignore_unknown_options": True})
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@options.platform()
@click.option("--world", "-w", type=click.IntRange(min=1), help="Ranks; all GPUs of the platform by default.")
@click.option("--module", "-m", is_flag=True, help="SCRIPT is a module, as with python -m.")
@options.path("--save", "Write the captured step here (step.json).")
@options.json_flag
@options.timeline
@options.path("--html", "Write a page that explains the step here.")
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Steps to record.")
@click.option("--warmup", type=click.IntRange(min=1), default=2, show_default=True, help="Steps before them.")
@click.option("--assume", multiple=True, metavar="NAME=VALUE", help=ASSUME_HELP)
@click.option("--batch", type=click.IntRange(min=1), help=BATCH_HELP)
@click.option("--ranks", "which", default="auto", show_default=True, help=RANKS_HELP)
@options.fields(options.PLATFORM_SET_HELP)
def capture(
    script: str, arguments: tuple[str, ...], platform: str, world: int | None, module: bool,
    save: Path | None, as_json: bool, timeline: Path | None, html: Path | None, steps: int, warmup: int,
    assume: tuple[str, ...], batch: int | None, which: str, assignments: tuple[str, ...],
) -> None:  # fmt: skip
    """Run SCRIPT (any PyTorch training script) on this machine, which needs no GPU, and predict its step.

    Options that this command does not know go to the script; so does everything after --.
    """
    from stepsight.capturing import api
    from stepsight.platform.load import load_platform
    from stepsight.prediction.predict import predict_captured

    options.check_outputs((save, timeline, html))
    chosen = load_platform(platform, options.platform_assignments(assignments, "a script", SCRIPT_FIX))
    size = world or chosen.spec.ranks
    captured = api.capture(
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
