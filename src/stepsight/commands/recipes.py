"""``stepsight recipes``: what training stacks do unless a workload asks for something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepsight.commands import options

if TYPE_CHECKING:
    from stepsight.workload.llm.recipe import Recipe

USE = (
    "Use one with `--recipe NAME` or `training.recipe`; `training.framework` takes its newest.\n"
    'Your own: a file with `like = "NAME"` and what differs, then `--recipe mine.toml`.'
)


@click.command("recipes")
@click.argument("name", required=False)
@options.json_flag
def command(name: str | None, as_json: bool) -> None:
    """List the recipes, or show every default of NAME (a recipe, a framework, or a file)."""
    from stepsight.workload.llm.recipe import recipe_of, recipes

    found = [recipe_of(name, "recipes")] if name else list(recipes().values())
    if as_json:
        from stepsight.documents import to_json

        shown = [_plain(one) for one in found]
        click.echo(to_json(shown[0] if name else shown))
        return
    if name:
        _show(found[0])
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
    }  # fmt: skip


def _show(one: Recipe) -> None:
    click.echo(f"{one.name}: {one.version}, {one.date}\nsource: {one.source}")
    whose = f"of {one.borrows} (none of its own)" if one.borrows else "its own"
    click.echo(f"host work per launch: {whose}\n")
    for section, table in (("training", one.training), ("parallel", one.parallel)):
        for key, value in table.items():
            shown = str(value).lower() if isinstance(value, bool) else value
            click.echo(f"  {section}.{key} = {shown}")
    for architecture, kernel in one.attention_on.items():
        click.echo(f"  training.attention on {architecture} = {kernel}")
