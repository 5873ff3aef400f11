"""``stepsight platforms``: the GPUs of the catalogue, and files to start one's own from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from stepsight.commands import options
from stepsight.errors import InputError

if TYPE_CHECKING:
    from stepsight.hardware.gpus import GpuEntry


NAMING = (
    "Name a platform [NODESx]GPUSx<GPU>[-<NIC in Gb/s per GPU>G]: 4xV100-SXM2,\n"
    "8xA100-SXM4-40G, 2x8xH100-SXM-400G. Your own GPU or cluster: start from\n"
    "`stepsight platforms --show NAME > mine.toml`, then `-p mine.toml`."
)
SHOW_HELP = "Print the file of a GPU (H100-SXM) or a platform (2x8xH100-SXM-400G), to start your own from."


@click.command("platforms")
@click.argument("words", nargs=-1)
@click.option("--show", metavar="NAME", help=SHOW_HELP, shell_complete=options.complete_platform)
@options.json_flag
def command(words: tuple[str, ...], show: str | None, as_json: bool) -> None:
    """List the GPUs of the catalogue; with WORDS only those that match them all (hopper, 80G, amd)."""
    if show:
        from stepsight.platform.importing import described

        click.echo(described(show), nl=False)
        return
    from stepsight.hardware.gpus import gpu_catalogue

    entries = [e for e in gpu_catalogue().values() if _matches(e, words)]
    if not entries:
        raise InputError(
            f"platforms {' '.join(words)}", "no GPU of the catalogue matches",
            "use fewer words, or describe yours: `stepsight platforms --show H100-SXM > mine.toml`",
        )  # fmt: skip
    if as_json:
        import msgspec

        from stepsight.documents import to_json

        click.echo(to_json([msgspec.to_builtins(entry) for entry in entries]))
        return
    _print(entries)
    click.echo(f"\n{NAMING}")


def _matches(entry: GpuEntry, words: Iterable[str]) -> bool:
    from stepsight.hardware.gpus import canonical

    gpu = entry.gpu
    text = " ".join(
        canonical(w) for w in (gpu.name, *gpu.aliases, gpu.vendor, gpu.architecture, entry.link.kind)
    )
    return all(canonical(word) in text for word in words)


def _print(entries: Iterable[GpuEntry]) -> None:
    from stepsight.terminal import listing, terminal

    titles = ("GPU", "GB", "memory GB/s", "fp32", "tf32", "bf16", "link", "link GB/s")
    table = listing(titles, (), left=("link",), edge=False)
    for entry in entries:
        gpu, link = entry.gpu, entry.link
        half = gpu.peak_tflops.get("bf16") or gpu.peak_tflops.get("fp16")
        peaks = [gpu.peak_tflops.get("fp32"), gpu.peak_tflops.get("tf32"), half]
        table.add_row(
            gpu.name, f"{gpu.memory_gb:g}", f"{gpu.memory_gbps:.0f}",
            *(f"{p:.0f}" if p else "–" for p in peaks), link.kind, f"{link.gbps:g}" if link.gbps else "–",
        )  # fmt: skip
    terminal().print(table)
    click.echo("fp32 to bf16: dense TFLOP/s (fp16 where there is no bf16); link per direction")
