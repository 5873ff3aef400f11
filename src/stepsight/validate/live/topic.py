"""``stepsight validate live``: random models, predicted first and then really trained here."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from stepsight.errors import InputError
from stepsight.score import BLIND, Figure, Score, gmae
from stepsight.validate.live.steps import (
    LiveRow,
    as_dict,
    live_documents,
    measure_group,
    pending,
    predict_all,
    rows_of,
    skew_correlations,
)  # fmt: skip
from stepsight.validate.scoreboard import add_draw

DLRM_BAR, NLP_BAR, SKEW_BAR = 0.0521, 0.0300, 0.9
"""METHOD §7 for DLRM and NLP; the correlation asked of different indices on the same tables."""
PREFIX_HELP = "Put before each rank's command, {rank} filled in: 'ip netns exec stepsight{rank}'."


@click.command("live")
@click.option("--platform", "-p", "platform_path", required=True, help="The calibrated platform folder.")
@click.option("--configs", default=40, show_default=True, help="Random DLRMs.")
@click.option("--nlp", default=12, show_default=True, help="Random BERT, GPT-2 and XLNet models.")
@click.option("--skew-sets", default=3, show_default=True, help="Sets of tables, each with five index skews.")
@click.option("--stack", type=click.Choice(["eager", "torchrec"]), default="eager", show_default=True,
              help="torchrec: only --configs DLRMs, as TorchRec trains them.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Other workloads.")
@click.option("--steps", default=8, show_default=True, help="Timed steps of each block.")
@click.option("--blocks", default=3, show_default=True, help="Interleaved blocks of each pass.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder that keeps the rows; goes on where it ended."
)
@click.option("--budget", default="", help="Stop measuring after this time: 90s, 3m, 1h; run again to go on.")
@click.option(
    "--against", type=click.Path(path_type=Path), help="The --out of another platform: what the link changes."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Predicted against measured as a picture.")
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Folder of `validate all`: add this draw there.",
)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where rank 0 listens.")
@click.option("--interface", default="", help="Network interface of gloo or NCCL.")
@click.option("--rank-prefix", "prefix", default="", help=PREFIX_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    platform_path: str, configs: int, nlp: int, skew_sets: int, stack: str, seed: int, steps: int,
    blocks: int, out: Path | None, budget: str, against: Path | None, plot: Path | None,
    results: Path | None, address: str, interface: str, prefix: str, as_json: bool,
) -> None:  # fmt: skip
    """Predict random models on a calibrated platform, train them here, and score the predictions."""
    from stepsight.calibrate.journal import Journal
    from stepsight.calibrate.session import budget_seconds
    from stepsight.platform.load import load_platform
    from stepsight.run.ranks import Ranks, writable_folder

    platform = load_platform(platform_path)
    ranks, device = platform.spec.ranks, "cpu" if platform.spec.host.synchronous else "cuda"
    began = time.monotonic()
    deadline = began + (budget_seconds(budget) if budget else 1e9)
    prefixes = [shlex.split(prefix.format(rank=r)) for r in range(ranks)] if prefix else []

    def start() -> Ranks:
        return Ranks(ranks, device, address=address, interface=interface, prefixes=prefixes)

    with tempfile.TemporaryDirectory() as scratch:
        journal = Journal(writable_folder(out or Path(scratch)), resume=True)
        documents = live_documents(ranks, configs, nlp, skew_sets, seed, stack)
        predict_all(documents, platform, journal)
        left = list(pending(journal, documents))
        for i, (number, group) in enumerate(left):
            if time.monotonic() > deadline:
                click.echo(f"{len(left) - i} of {len(left)} groups are left; run again to go on", err=True)
                break
            click.echo(f"measuring group {i + 1} of {len(left)}, pass {number + 1}", err=True)
            measure_group(start, number, group, journal, steps, blocks)
        rows = rows_of(journal)
        others = rows_of(Journal(against, resume=True)) if against else []
    if not rows:
        raise InputError("validate live", "nothing was measured in every pass yet", "run again to go on")
    if results:
        add_draw(results, platform.name, seed, scores(rows), time.monotonic() - began)
    if plot:
        draw(plot, rows, platform.name)
    report(rows, others, platform.name, as_json=as_json)


def scores(rows: Sequence[LiveRow]) -> list[Score]:
    """One line per kind; the bar is the published figure or the repeat noise, whichever is larger."""
    lines = []
    for kind, bar in (("DLRM", DLRM_BAR), ("NLP", NLP_BAR), ("TorchRec", DLRM_BAR)):
        of_kind = [r for r in rows if r.kind == kind]
        if not of_kind:
            continue
        measured = [r.measured_us for r in of_kind]
        noise = gmae([r.passes_us[0] for r in of_kind], [r.passes_us[-1] for r in of_kind])
        naive = gmae([r.naive_us for r in of_kind], measured)
        worst = max(of_kind, key=lambda r: abs(r.error))
        lines.append(
            Score.of(
                "live", kind, [r.predicted_us for r in of_kind], measured, "random, none calibrated on",
                gmae_target=max(bar, noise), exposure=BLIND,
                note=f"noise {noise:.2%}, naive {naive:.1%}, worst {worst.error:+.1%} ({worst.name})",
            )
        )  # fmt: skip
    return lines


def report(rows: Sequence[LiveRow], others: Sequence[LiveRow], platform: str, *, as_json: bool) -> None:
    """The table, the scores, the skews, and what another link changes; a missed bar is exit code 1."""
    from stepsight.validate import scoreboard

    skews = skew_correlations(rows)
    lines = [*scores(rows), *skew_scores(skews)]
    changes = link_changes(rows, others)
    if as_json:
        from stepsight.documents import to_json

        click.echo(
            to_json(
                {
                    "platform": platform,
                    "rows": [as_dict(r) for r in rows],
                    "scores": scoreboard.plain(lines),
                    "skew_correlation": skews,
                    "link_change": changes,
                }
            )
        )
    else:
        _table(rows, platform)
        scoreboard.table(lines)
        _print_changes(changes)
    scoreboard.end(lines)


def skew_scores(correlations: Mapping[str, float]) -> list[Score]:
    """One line a set of tables: predicted against measured over its index skews."""
    return [
        Score.reading(
            "live", f"{name}, over index skews", 1, Figure("correlation", value, "more", is_share=False),
            "the same tables, other indices", target=f"≥ {SKEW_BAR}", met=value >= SKEW_BAR, exposure=BLIND,
        )
        for name, value in correlations.items()
    ]  # fmt: skip


def _print_changes(changes: Sequence[Mapping[str, Any]]) -> None:
    """What another link changes."""
    for change in changes:
        click.echo(
            f"{change['name']:<16} other link ÷ this one: predicted {change['predicted']:.2f}, "
            f"measured {change['measured']:.2f}"
        )
    if changes:
        ratio = gmae([c["predicted"] for c in changes], [c["measured"] for c in changes])
        click.echo(f"link change over {len(changes)} workloads: geomean error of the ratio {ratio:.1%}")


def link_changes(rows: Sequence[LiveRow], others: Sequence[LiveRow]) -> list[dict[str, Any]]:
    """Step time there over step time here, predicted and measured, of the workloads run on both."""
    there = {r.name: r for r in others}
    return [
        {
            "name": r.name,
            "predicted": there[r.name].predicted_us / r.predicted_us,
            "measured": there[r.name].measured_us / r.measured_us,
        }
        for r in rows
        if r.name in there
    ]


def _table(rows: Sequence[LiveRow], platform: str) -> None:
    from rich.table import Table

    from stepsight.terminal import terminal

    table = Table(title=f"predicted, then measured on {platform}", box=None, padding=(0, 1))
    for name in (
        "workload",
        "predicted ms",
        "measured ms",
        "error",
        "noise",
        "naive ms",
    ):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for r in rows:
        table.add_row(
            r.name, f"{r.predicted_us / 1e3:.2f}", f"{r.measured_us / 1e3:.2f}", f"{r.error:+.1%}",
            f"{r.noise:.1%}", f"{r.naive_us / 1e3:.2f}",
        )  # fmt: skip
    terminal().print(table)


def draw(path: Path, rows: Sequence[LiveRow], platform: str) -> None:
    """Predicted against measured, both axes logarithmic, with the ±10 % band."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot", "needs matplotlib", "pip install 'stepsight[plot]'") from None
    figure = Figure(figsize=(5, 5))
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    ends = np.array([min(r.measured_us for r in rows), max(r.measured_us for r in rows)]) / 1e3
    axes.plot(ends, ends, color="0.6", linewidth=1)
    axes.fill_between(ends, ends / 1.1, ends * 1.1, color="0.92")
    for kind in dict.fromkeys(r.kind for r in rows):
        of_kind = [r for r in rows if r.kind == kind]
        axes.plot(
            [r.measured_us / 1e3 for r in of_kind], [r.predicted_us / 1e3 for r in of_kind], "o",
            markersize=4, label=kind,
        )  # fmt: skip
    axes.set_title(f"steps on {platform}")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
