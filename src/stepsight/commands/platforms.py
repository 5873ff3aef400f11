"""``stepsight platforms`` and ``recipes``: known GPUs and training stacks, to start one's own from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from stepsight.commands import options
from stepsight.errors import InputError

if TYPE_CHECKING:
    from stepsight.hardware.gpus import GpuEntry
    from stepsight.workload.llm.recipe import Recipe

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

        if as_json:
            from stepsight.documents import to_json
            from stepsight.records import parse_toml

            click.echo(to_json(parse_toml(described(show), show)))
            return
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


USE = (
    "Use one with `--recipe NAME` or `training.recipe`; `training.framework` takes its newest.\n"
    'Your own: a file with `like = "NAME"` and what differs, then `--recipe mine.toml`.'
)


@click.command("recipes")
@click.argument("name", required=False)
@options.json_flag
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes, or show every default of NAME (a recipe, a framework, or a file)."""
    from stepsight.workload.llm.recipe import recipe_of
    from stepsight.workload.llm.recipe import recipes as known

    found = [recipe_of(name, "recipes")] if name else list(known().values())
    if as_json:
        from stepsight.documents import to_json

        shown = [_plain(one) for one in found]
        click.echo(to_json(shown[0] if name else shown))
        return
    if name:
        _show_recipe(found[0])
        return
    from stepsight.terminal import listing, terminal

    titles = ("recipe", "framework", "date", "version")
    rows = [(one.name, one.family, one.date, one.version) for one in found]
    terminal().print(listing(titles, rows, left=titles))
    click.echo(f"\n{USE}")


def _plain(one: Recipe) -> dict[str, object]:
    return {
        "name": one.name, "framework": one.family, "code": one.framework.name, "version": one.version,
        "date": one.date, "source": one.source, "host_profile": one.framework.host_profile,
        "borrows_host_profile": bool(one.borrows), "training": dict(one.training),
        "attention_on": dict(one.attention_on), "parallel": dict(one.parallel),
        "where": [{"for": each.words, **each.settings} for each in one.exceptions],
    }  # fmt: skip


def _show_recipe(one: Recipe) -> None:
    click.echo(f"{one.name}: {one.version}, {one.date}\nsource: {one.source}")
    whose = f"of {one.borrows} (none of its own)" if one.borrows else "its own"
    click.echo(f"host work per launch: {whose}\n")
    for section, table in (("training", one.training), ("parallel", one.parallel)):
        for key, value in table.items():
            click.echo(f"  {section}.{key} = {options.value_text(value)}")
    for architecture, kernel in one.attention_on.items():
        click.echo(f"  training.attention on {architecture} = {kernel}")
    for each in one.exceptions:
        for key, value in each.settings.items():
            click.echo(f"  {key} = {options.value_text(value)}  ({each.words})")
