"""``stepsight calibrate``: measure this machine, or learn from runs; ``run``: train a workload here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepsight.commands import options
from stepsight.errors import InputError
from stepsight.terminal import counted
from stepsight.workload.files import Workload, load_workload

if TYPE_CHECKING:
    from stepsight.run.measure import Measurement


STACK_HELP = (
    "Whose DLRMs to measure: eager PyTorch's, or TorchRec's (CPU; needs torchrec and fbgemm-gpu-cpu)."
)


@click.command("calibrate")
@options.path("--runs", "Learn from measured runs instead (CSV).")
@click.option("--platform", "-p", "platform", help="With --runs: the platform that they ran on.")
@options.fields("With --runs: a field of it.", name="overrides")
@options.path("--html", "With --runs: write a page here.")
@click.option("--device", default="cpu", show_default=True, help="cpu (gloo) or cuda (nccl).")
@click.option("--ranks", default=2, show_default=True, help="Processes that measure at the same time.")
@options.path("--out", "The platform folder, or with --runs the file.", "folder", required=True)
@click.option("--budget", default="5m", show_default=True, help="How long to measure: 90s, 5m, 1h.")
@click.option("--resume", is_flag=True, help="Resume an interrupted calibration of that folder.")
@options.path("--kernels-from", "Take kernels, lookups and host overheads from this folder.")
@click.option(
    "--stack", type=click.Choice(["eager", "torchrec"]), default="eager", show_default=True, help=STACK_HELP
)
@click.option("--name", default="", help="The platform's name; the folder's by default.")
@click.option("--seed", default=0, help="Another seed measures other shapes.")
@options.port
@options.network
@options.json_flag
def command(
    runs: Path | None, platform: str | None, overrides: tuple[str, ...], html: Path | None,
    device: str, ranks: int, folder: Path, budget: str, resume: bool, kernels_from: Path | None, stack: str,
    name: str, seed: int, port: int, address: str, interface: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Measure this machine and write a platform folder that predict, shard and validate take by path.

    The folder also keeps every sample, so that an interrupted calibration can --resume, and
    calibration.json, which says how quiet the machine was. --kernels-from serves a machine whose
    network alone has changed: only what the network touches is measured again. With --stack torchrec it
    takes what is the same for both stacks: kernels, collectives and contention.

    --runs learns a cluster from steps measured there: `--runs runs.csv -p 4x8xH100-SXM-400G --out mine.toml`.
    """
    if runs:
        _learn(runs, platform, overrides, folder, name, html, as_json)
        return
    if platform or overrides or html:
        raise click.UsageError("--platform, --set and --html belong to --runs")
    from stepsight.calibrate.folder import build
    from stepsight.calibrate.journal import Journal
    from stepsight.calibrate.session import HOST, KERNELS, LOOKUPS, SHARED, Calibration, budget_seconds
    from stepsight.documents import only_writer
    from stepsight.run.ranks import Ranks, check_device, writable_folder
    from stepsight.terminal import terminal

    seconds = budget_seconds(budget)
    check_device(device, ranks)
    if stack == "torchrec" and (device != "cpu" or ranks < 2):
        raise InputError("--stack torchrec", "is measured on two CPU ranks or more", "use --device cpu")
    with only_writer(writable_folder(folder)):
        journal = Journal(folder, resume=resume)
        if kernels_from:
            journal.take_from(kernels_from, (KERNELS, LOOKUPS, HOST) if stack == "eager" else SHARED)
        console = terminal(stderr=True)
        prefixes = options.rank_prefixes(prefix, ranks)
        group = Ranks(ranks, device, port=port, address=address, interface=interface, prefixes=prefixes)
        with group, console.status("starting the ranks") as status:

            def update(stage: str, done: int, of: int) -> None:
                status.update(f"measuring {stage}: {done} of {of}")

            Calibration(group, journal, seconds, update, seed, stack).run()
        with console.status("fitting"):
            found = build(journal, folder, name or folder.resolve().name, device, ranks)
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json({k: v for k, v in found.items() if k != "fitted"} | {"folder": str(folder)}))
        return
    _show(folder, found)


def _learn(
    runs: Path, platform: str | None, overrides: tuple[str, ...], out: Path, name: str, html: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    from stepsight.prediction.learn.lesson import learn
    from stepsight.report.runs import lesson_report

    if not platform:
        raise click.UsageError("--runs needs --platform, where the runs were measured")
    options.check_outputs([out, html])
    if out.suffix != ".toml":
        raise InputError(f"--out {out}", "a learned platform is a file", "name it mine.toml")
    fix = "a field of a workload is a column of the file"
    lesson = learn(runs, platform, options.platform_assignments(overrides, str(runs), fix))
    report = lesson_report(lesson)
    options.deliver(
        lambda: lesson.to_dict() | {"file": str(out)}, report.show,
        (out, lambda: lesson.text(name or out.stem)), (html, report.page), as_json=as_json,
    )  # fmt: skip


def _show(folder: Path, found: dict[str, Any]) -> None:
    from stepsight.terminal import listing, terminal

    console = terminal()
    machine, contention = found["fitted"].kernels.machine, found["fitted"].contention
    factors = ", ".join(f"{kind} ×{factor:.2f}" for kind, factor in found["in_step"].items())
    kernels, steps = (100 * found[f"{what}_repeat_error"] for what in ("kernel", "step"))
    rows = [
        ("samples", ", ".join(f"{n} {stage}" for stage, n in found["samples"].items())),
        ("speed of a rank", f"{machine.gflops:.1f} GFLOP/s, {machine.memory_gbps:.1f} GB/s"),
        (
            "contention (slowdown)",
            f"compute during communication ×{contention.compute_under_comm:.2f}, "
            f"communication during compute ×{contention.comm_under_compute:.2f}, lookups on all ranks at "
            f"once ×{contention.lookups_forward:.2f} forward and ×{contention.lookups_backward:.2f} backward",
        ),
        ("slower in a step than alone", factors),
        ("error on check steps", f"±{100 * found['rehearsal_spread']:.1f} %"),
        ("repeated measurements differ by", f"kernels {kernels:.1f} %, steps {steps:.1f} %"),
    ]
    title = f"platform {folder}: {counted(found['ranks'], 'rank')} on {found['device']}"
    console.print(listing(("", " "), rows, title=title, left=(" ",)))
    if found["noisy"]:
        console.print(
            f"This machine was noisy (load {found['load_at_start']} at the start, "
            f"{100 * found['stolen_share']:.1f} % of its time stolen): calibrate again when it is quiet."
        )
    console.print(f"Predict with: stepsight predict WORKLOAD.toml --platform {folder}", soft_wrap=True)


@click.command("run")
@click.argument("workload_file", metavar="WORKLOAD.toml", type=click.Path(dir_okay=False))
@click.option("--device", default="cpu", show_default=True, help="cpu (gloo) or cuda (nccl).")
@click.option("--ranks", type=int, help="Processes; as in the file by default.")
@click.option("--steps", default=10, show_default=True, help="Timed steps per block.")
@click.option("--blocks", default=3, show_default=True, help="Blocks; their medians give the spread.")
@click.option("--warmup", default=3, show_default=True, help="Steps before the first block.")
@options.fields("Change a field of the file.", name="overrides")
@options.port
@click.option("--pin/--no-pin", default=True, show_default=True, help="Pin each rank to cores of its own.")
@options.path("--profile", "Write Kineto and ET files here.", "profile_dir")
@options.json_flag
def run(
    workload_file: str, device: str, ranks: int | None, steps: int, blocks: int, warmup: int,
    overrides: tuple[str, ...], port: int, pin: bool, profile_dir: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Train WORKLOAD.toml on this machine and report the step time with its spread."""
    from stepsight.run.measure import measure_all, profile
    from stepsight.run.ranks import Ranks, check_device, writable_folder

    for name, value in (("--steps", steps), ("--blocks", blocks)):
        if value < 1:
            raise InputError(f"{name} {value}", "must be at least 1", "give a positive number")
    own = () if ranks is None else (f"parallel.ranks={ranks}",)
    workload = load_workload(workload_file, (*overrides, *own))
    check_device(device, workload.ranks)
    if profile_dir is not None:
        writable_folder(profile_dir)
    with Ranks(workload.ranks, device, port=port, pin=pin) as group:
        measurement = measure_all(group, [workload], steps=steps, blocks=blocks, warmup=warmup)[0]
        files = profile(group, workload, profile_dir) if profile_dir is not None else []
    notes = _notes(workload, device)
    if as_json:
        found = {**measurement.as_dict(), "profile": [str(f) for f in files], "notes": notes}
        click.echo(json.dumps(found, indent=1))
    else:
        _show_measurement(measurement, files, notes)


def _notes(workload: Workload, device: str) -> list[str]:
    """What keeps this machine from its usual speed."""
    from stepsight.run.ranks import AMX_NOTE, amx_settings

    half = workload.config.training.precision in ("bf16", "fp16")
    return [AMX_NOTE] if half and device == "cpu" and amx_settings(os.environ) else []


def _show_measurement(measurement: Measurement, files: list[Path], notes: list[str]) -> None:
    from stepsight.terminal import listing, terminal

    m = measurement
    rows = [
        ("step (median of block medians)", f"{m.step_us / 1e3:.3f}"),
        ("10 % … 90 % of steps", f"{m.low_us / 1e3:.3f} … {m.high_us / 1e3:.3f}"),
        ("blocks differ by", f"±{100 * m.spread:.1f} %"),
        *((f"rank {rank}", f"{time_us / 1e3:.3f}") for rank, time_us in enumerate(m.rank_us)),
    ]
    console = terminal()
    console.print(
        listing(("", "ms"), rows, title=f"{m.name}: measured on {m.device}, {counted(m.ranks, 'rank')}")
    )
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)
    for path in files:
        console.print(f"wrote {path}", soft_wrap=True)
