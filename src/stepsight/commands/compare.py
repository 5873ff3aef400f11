"""``stepsight compare``: two predictions side by side."""

from __future__ import annotations

from pathlib import Path

import click

from stepsight.prediction.compare import Comparison, compare

SIDES = """A and B are workload files, or the same file twice with different options:

\b
  stepsight compare dlrm.toml dlrm.toml -p 4xV100-SXM2 --platform-b 8xA100-SXM4-40G
  stepsight compare gpt2.toml -p 8xH100-SXM --set-b batch_per_rank=16
"""


@click.command("compare", help=f"Predict A and B and show where the difference went.\n\n{SIDES}")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", required=False, type=click.Path(path_type=Path))
@click.option("--platform", "-p", "platform", required=True, help="Platform of A, and of B unless given.")
@click.option("--platform-b", help="Platform of B.")
@click.option("--set", "both", multiple=True, metavar="KEY=VALUE", help="Change a field on both sides.")
@click.option("--set-b", "only_b", multiple=True, metavar="KEY=VALUE", help="Change a field of B only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    a: Path, b: Path | None, platform: str, platform_b: str | None, both: tuple[str, ...],
    only_b: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    from stepsight.commands.predict import predict_file

    before = predict_file(a, platform, both)
    after = predict_file(b or a, platform_b or platform, (*both, *only_b))
    comparison = compare(before, after)
    if as_json:
        click.echo(_json(comparison))
    else:
        show(comparison)


def _json(comparison: Comparison) -> str:
    import msgspec

    from stepsight.report.document import document, to_json

    return to_json(
        {
            "before": document(comparison.before),
            "after": document(comparison.after),
            "difference_us": comparison.difference_us,
            "speedup": comparison.speedup,
            "changes": [
                {**msgspec.to_builtins(c), "difference_us": c.difference_us} for c in comparison.changes
            ],
        }
    )


def show(comparison: Comparison) -> None:
    """The table that ``compare`` prints."""
    from rich.console import Console
    from rich.table import Table

    from stepsight.report.categories import look
    from stepsight.report.units import time

    before, after = comparison.before, comparison.after
    console = Console(highlight=False)
    console.print(f"A  {before.workload} on {before.platform}: {time(before.step_us)}", soft_wrap=True)
    console.print(f"B  {after.workload} on {after.platform}: {time(after.step_us)}", soft_wrap=True)
    word = "faster" if comparison.speedup >= 1 else "slower"
    ratio = max(comparison.speedup, 1 / comparison.speedup)
    console.print(f"B is {ratio:.2f}× {word} ({time(comparison.difference_us)})")
    table = Table(title="where the difference went (mean over ranks)", title_justify="left", box=None)
    for name in ("", "A", "B", "B − A"):
        table.add_column(name, justify="left" if not name else "right")
    for change in comparison.changes:
        name = look(change.category).word
        table.add_row(name, time(change.before_us), time(change.after_us), time(change.difference_us))
    console.print(table)
