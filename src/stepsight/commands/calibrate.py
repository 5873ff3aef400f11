"""``stepsight calibrate``: measure this machine and write a platform folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from stepsight.errors import InputError

PREFIX_HELP = "Prefix of each rank's command; {rank} is replaced: 'ip netns exec stepsight{rank}'."


@click.command("calibrate")
@click.option("--device", default="cpu", show_default=True, help="cpu (gloo) or cuda (nccl).")
@click.option("--ranks", default=2, show_default=True, help="Processes that measure at the same time.")
@click.option("--out", "folder", required=True, type=click.Path(path_type=Path), help="The platform folder.")
@click.option(
    "--budget",
    default="5m",
    show_default=True,
    help="How long to measure: 90s, 5m, 1h.",
)
@click.option("--resume", is_flag=True, help="Resume an interrupted calibration of that folder.")
@click.option(
    "--kernels-from",
    type=click.Path(path_type=Path),
    help="Take kernels, lookups and host overheads from this folder.",
)
@click.option(
    "--stack",
    type=click.Choice(["now", "torchrec"]),
    default="now",
    show_default=True,
    help="Whose DLRMs to measure: eager PyTorch's, or TorchRec's (CPU; needs torchrec and fbgemm-gpu-cpu).",
)
@click.option("--name", default="", help="The platform's name; the folder's by default.")
@click.option("--seed", default=0, help="Another seed measures other shapes.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Rendezvous port of the ranks (default: any free one).",
)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where rank 0 listens.")
@click.option("--interface", default="", help="Network interface of gloo or NCCL.")
@click.option("--rank-prefix", "prefix", default="", help=PREFIX_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def command(
    device: str, ranks: int, folder: Path, budget: str, resume: bool, kernels_from: Path | None, stack: str,
    name: str, seed: int, port: int, address: str, interface: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Measure this machine and write a platform folder that predict, shard and validate take by path.

    The folder also keeps every sample, so that an interrupted calibration can --resume, and
    calibration.json, which says how quiet the machine was. --kernels-from serves a machine whose
    network alone has changed: only what the network touches is measured again. With --stack torchrec it
    takes what is the same for both stacks: kernels, collectives and contention.
    """
    from stepsight.calibrate.session import budget_seconds
    from stepsight.locks import only_writer
    from stepsight.run.ranks import check_device, writable_folder

    seconds = budget_seconds(budget)
    check_device(device, ranks)
    if stack == "torchrec" and (device != "cpu" or ranks < 2):
        raise InputError("--stack torchrec", "is measured on two CPU ranks or more", "use --device cpu")
    with only_writer(writable_folder(folder)):
        _calibrate(
            device, ranks, folder, seconds, resume, kernels_from, stack, name, seed, port, address,
            interface, prefix, as_json,
        )  # fmt: skip


def _calibrate(
    device: str, ranks: int, folder: Path, seconds: float, resume: bool, kernels_from: Path | None,
    stack: str, name: str, seed: int, port: int, address: str, interface: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    from stepsight.calibrate.folder import Journal, build
    from stepsight.calibrate.session import HOST, KERNELS, LOOKUPS, SHARED, Calibration
    from stepsight.run.ranks import Ranks
    from stepsight.terminal import terminal

    journal = Journal(folder, resume=resume)
    if kernels_from:
        journal.take_from(kernels_from, (KERNELS, LOOKUPS, HOST) if stack == "now" else SHARED)
    console = terminal(stderr=True)
    prefixes = [shlex.split(prefix.format(rank=r)) for r in range(ranks)] if prefix else []
    group = Ranks(ranks, device, port=port, address=address, interface=interface, prefixes=prefixes)
    with group, console.status("starting the ranks") as status:
        Calibration(
            group,
            journal,
            seconds,
            lambda stage, done, of: status.update(f"measuring {stage}: {done} of {of}"),
            seed,
            stack,
        ).run()
    with console.status("fitting"):
        found = build(journal, folder, name or folder.resolve().name, device, ranks)
    if as_json:
        import json

        click.echo(
            json.dumps({k: v for k, v in found.items() if k != "fitted"} | {"folder": str(folder)}, indent=1)
        )
        return
    _show(folder, found)


def _show(folder: Path, found: dict[str, Any]) -> None:
    from rich.table import Table

    from stepsight.terminal import terminal

    console = terminal()

    machine, contention = found["fitted"].kernels.machine, found["fitted"].contention
    table = Table(title=f"platform {folder}: {found['ranks']} ranks on {found['device']}", show_header=False)
    table.add_row("samples", ", ".join(f"{n} {stage}" for stage, n in found["samples"].items()))
    table.add_row("speed of a rank", f"{machine.gflops:.1f} GFLOP/s, {machine.memory_gbps:.1f} GB/s")
    table.add_row(
        "contention (slowdown)",
        f"compute during communication ×{contention.compute_under_comm:.2f}, "
        f"communication during compute ×{contention.comm_under_compute:.2f}, lookups on all ranks at once "
        f"×{contention.lookups_forward:.2f} forward and ×{contention.lookups_backward:.2f} backward",
    )
    table.add_row(
        "slower in a step than alone",
        ", ".join(f"{kind} ×{factor:.2f}" for kind, factor in found["in_step"].items()),
    )
    table.add_row("error on check steps", f"±{found['rehearsal_spread']:.1%}")
    table.add_row(
        "repeated measurements differ by",
        f"kernels {found['kernel_repeat_error']:.1%}, steps {found['step_repeat_error']:.1%}",
    )
    console.print(table)
    if found["noisy"]:
        console.print(
            f"This machine was noisy (load {found['load_at_start']} at the start, "
            f"{found['stolen_share']:.1%} of its time stolen): calibrate again when it is quiet."
        )
    console.print(f"Predict with: stepsight predict WORKLOAD.toml --platform {folder}", soft_wrap=True)
