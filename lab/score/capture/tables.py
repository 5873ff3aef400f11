"""What ``score capture --traces`` and ``--training`` print."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import msgspec

from lab.score.capture.published import PublishedRow, rows
from lab.score.capture.traced import Compared, Side, compared


def show_traced(data: Path, only: tuple[str, ...], keep: Path | None, *, as_json: bool) -> None:
    """Each traced run: counts, collectives and times, traced and captured."""
    found = list(compared(data, only, keep))
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json([msgspec.to_builtins(one) for one in found]))
        return
    for one in found:
        _print_run(one)


def _print_run(one: Compared) -> None:
    from rich.table import Table

    from stepsight.terminal import terminal

    if one.traced is None or one.captured is None:
        click.echo(f"{one.run.name}: not compared: {one.problem}\n")
        return
    error = one.predicted_ms / one.measured_ms - 1
    inside = "inside" if one.low_ms <= one.measured_ms <= one.high_ms else "outside"
    click.echo(
        f"{one.run.name}: measured {one.measured_ms:.1f} ms, predicted {one.predicted_ms:.1f} ms "
        f"({error:+.1%}), measured lies {inside} [{one.low_ms:.1f}, {one.high_ms:.1f}]"
    )
    table = Table(box=None, padding=(0, 1))
    for name in ("a step of rank 0", "traced", "captured"):
        table.add_column(name, justify="left" if name.startswith("a ") else "right")
    for what, traced, captured in _lines(one.traced, one.captured):
        table.add_row(what, traced, captured)
    terminal().print(table)
    click.echo(f"differs: {one.run.differs}\n")


def _lines(traced: Side, captured: Side) -> list[tuple[str, str, str]]:
    lines = [
        ("host operators", f"{traced.operators:,}", f"{captured.operators:,}"),
        ("kernels", f"{traced.kernels:,}", f"{captured.kernels:,}"),
    ]
    for family, count in traced.families.items():
        if count or captured.families[family]:
            lines.append((f"  {family}", f"{count:,}", f"{captured.families[family]:,}"))
    lines.append(("GPU busy", f"{traced.gpu_ms:.1f} ms", f"{captured.gpu_ms:.1f} ms"))
    kinds = dict.fromkeys(kind for kind, _ in (*traced.collectives, *captured.collectives))
    for kind in kinds:
        lines.append((kind, _sizes(traced, kind), _sizes(captured, kind)))
    return lines


def _sizes(side: Side, kind: str) -> str:
    """MB of each collective of this kind, equal ones counted."""
    counted = Counter(f"{size / 1e6:.2f}" for k, size in side.collectives if k == kind)
    shown = [f"{size}" + (f" ×{n}" if n > 1 else "") for size, n in counted.items()]
    return ", ".join(shown[:8]) + (" …" if len(shown) > 8 else "") + " MB" if shown else "none"


def show_published(data: Path, only: tuple[str, ...], keep: Path | None, *, as_json: bool) -> None:
    """torchtitan's rows."""
    found = list(rows(data, only, keep))
    if as_json:
        from stepsight.documents import to_json

        click.echo(to_json([msgspec.to_builtins(row) for row in found]))
        return
    for row in found:
        click.echo(_published(row))


def _published(row: PublishedRow) -> str:
    if row.problem:
        return f"not captured: {row.name}: {row.problem}"
    how = "compiled, fusion approximated" if row.compiled else "eager"
    inside = "inside" if row.low_ms <= row.measured_ms <= row.high_ms else "outside"
    error = row.predicted_ms / row.measured_ms - 1
    return (
        f"{row.name}: measured {row.measured_ms:,.0f} ms, predicted {row.predicted_ms:,.0f} ms "
        f"({error:+.1%}, {inside} [{row.low_ms:,.0f}, {row.high_ms:,.0f}], {how})"
    )
