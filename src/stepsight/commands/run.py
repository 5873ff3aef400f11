"""``stepsight run``: train a workload here and report the measured step time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepsight.commands import options
from stepsight.errors import InputError
from stepsight.terminal import counted
from stepsight.workload.files import Workload, load_workload

if TYPE_CHECKING:
    from stepsight.run.measure import Measurement


@click.command("run")
@click.argument("workload_file", metavar="WORKLOAD.toml", type=click.Path(dir_okay=False))
@click.option("--device", default="cpu", show_default=True, help="cpu (gloo) or cuda (nccl).")
@click.option("--ranks", type=int, help="Processes; as in the file by default.")
@click.option("--steps", default=10, show_default=True, help="Timed steps per block.")
@click.option("--blocks", default=3, show_default=True, help="Blocks; their medians give the spread.")
@click.option("--warmup", default=3, show_default=True, help="Steps before the first block.")
@options.fields("Change a field of the file.", name="overrides")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Rendezvous port of the ranks (default: any free one).",
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Pin each rank to cores of its own.")
@options.path("--profile", "Write Kineto and ET files here.", "profile_dir")
@options.json_flag
def command(
    workload_file: str, device: str, ranks: int | None, steps: int, blocks: int, warmup: int,
    overrides: tuple[str, ...], port: int, pin: bool, profile_dir: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Train WORKLOAD.toml on this machine and report the step time with its spread."""
    from stepsight.run.measure import measure_all, profile
    from stepsight.run.ranks import Ranks, check_device, writable_folder

    for name, value in (("--steps", steps), ("--blocks", blocks)):
        if value < 1:
            raise InputError(f"{name} {value}", "must be at least 1", "give a positive number")
    workload = _load(workload_file, overrides, ranks)
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
        _show(measurement, files, notes)


def _notes(workload: Workload, device: str) -> list[str]:
    """What keeps this machine from its usual speed."""
    from stepsight.run.ranks import AMX_NOTE, amx_settings

    half = workload.config.training.precision in ("bf16", "fp16")
    return [AMX_NOTE] if half and device == "cpu" and amx_settings(os.environ) else []


def _load(path: str, overrides: tuple[str, ...], ranks: int | None) -> Workload:
    extra = () if ranks is None else (f"parallel.ranks={ranks}",)
    return load_workload(path, (*overrides, *extra))


def _show(measurement: Measurement, files: list[Path], notes: list[str]) -> None:
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
