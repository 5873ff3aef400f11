"""``stepsight platforms``: what the catalogue knows."""

from __future__ import annotations

import click


@click.command("platforms")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the GPUs of the catalogue and how to name a platform of them."""
    import msgspec
    from rich.table import Table

    from stepsight.documents import to_json
    from stepsight.hardware.gpus import gpu_catalogue
    from stepsight.terminal import terminal

    entries = gpu_catalogue().values()
    if as_json:
        click.echo(to_json([msgspec.to_builtins(entry) for entry in entries]))
        return
    table = Table(box=None, padding=(0, 1))
    for name in ("GPU", "memory", "bandwidth", "L2", "fp32", "tf32", "fp16/bf16", "link", "source"):
        table.add_column(name, justify="left" if name in ("GPU", "link", "source") else "right")
    for entry in entries:
        gpu, link = entry.gpu, entry.link
        peaks = [
            f"{gpu.peak_tflops[d]:g} TF" if d in gpu.peak_tflops else "–" for d in ("fp32", "tf32", "fp16")
        ]
        table.add_row(
            gpu.name, f"{gpu.memory_gb:g} GB", f"{gpu.memory_gbps:g} GB/s", f"{gpu.l2_mb:g} MB", *peaks,
            f"{link.kind} {link.gbps:g} GB/s", gpu.source,
        )  # fmt: skip
    console = terminal()
    console.print(table)
    console.print(
        "\nName a platform [NODESx]GPUSx<GPU>[-<NIC Gb/s per GPU>G]: 4xV100-SXM2, 8xA100-SXM4-40G, "
        "2x8xH100-SXM-400G.\nYour own: a TOML file or a folder from `stepsight calibrate`, by its path."
    )
