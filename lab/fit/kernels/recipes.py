"""What is shipped: which tables become which artefact, with which settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from lab.datasets.folder import data_folder
from lab.fit.kernels.boards import fit_boards, model_products, unthrottled
from lab.fit.kernels.boost import Settings
from lab.fit.kernels.learn import fit_streams, gemm_anchors, launch_path, learn, small_gemm_us
from lab.fit.kernels.sources import (
    SERVING_SYSTEMS,
    STACKS,
    Measured,
    event_tables,
    serving_attention,
    serving_gemm,
)
from stepsight.hardware.gpus import load_gpu
from stepsight.kernels.learned.model import LIGHT, REACH, TILED, EventPath, LearnedModel, save_models
from stepsight.kernels.learned.transfer import FILE as BOARDS_FILE
from stepsight.kernels.learned.transfer import THROTTLED, Board, save_boards
from stepsight.kernels.machine import Machine
from stepsight.kernels.streams import Streamed, save_streams

MOST_ROWS = 110_000
"""Rows per fit; beyond, a fixed random choice. More rows moved the held-out error by under 0.1 %."""

SETTINGS = {
    "gemm": Settings(trees=650),
    # Fewer rows than bmm. Finer fits read the table better and real models' layers worse, but for P100, whose
    # efficiency falls with the length of the reduction.
    "linear": Settings(trees=300, rate=0.25, clip=0.05, rows=0.7, bins=128, repeats=2),
    "linear P100-PCIE-16G": Settings(
        trees=300, rate=0.25, clip=0.05, features=0.7, rows=0.7, bins=128, repeats=2
    ),
    "bmm": Settings(trees=600, rate=0.3, clip=0.05, features=0.7, bins=160),
    "conv": Settings(trees=500, rate=0.25, clip=0.1),
    "attention": Settings(trees=500),
    "softmax": Settings(trees=150, depth=4, rate=0.1),
    "layer_norm": Settings(trees=150, depth=4, rate=0.1),
}

FP32_ARTEFACTS = {
    "gemm_fp32": ("gemm",), "conv_fp32": ("conv",), "rows_fp32": ("softmax", "layer_norm"),
}  # fmt: skip
"""Artefacts of the event-timed tables, and the families in each."""

FP8_GPUS = ("H100-SXM-80G", "H200-SXM-141G", "L40S", "B200-SXM-180G")
"""GPUs of the serving tables with fp8 units."""

BASES = {"bmm": TILED, "linear": REACH}
"""Products whose trees correct more than the speed of light."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Fitted:
    """One line about a model just fitted: its error on rows left out (of a board, on its own rows)."""

    artefact: str
    gpu: str
    model: str
    rows: int
    gmae: float
    mape: float | None = None

    @classmethod
    def of(cls, artefact: str, made: LearnedModel | Streamed | Board) -> Fitted:
        if isinstance(made, Board):
            share = f"{made.variant} fp32, {made.share:.2f} of peak"
            return cls(artefact, made.gpu, share, made.rows, made.gmae)
        if isinstance(made, Streamed):
            return cls(artefact, made.machine.name, "elementwise fp32", made.rows, made.gmae, made.mape)
        name, by = f"{made.family} {made.dtype} {made.variant}", made.provenance
        return cls(artefact, made.machine.name, name, by.rows, by.gmae, by.mape)


def fit_kernels(data: Path, out: Path, only: Sequence[str] = ()) -> Iterator[Fitted]:
    """Fit every artefact (or those named in ``only``), write it into ``out``, and report each model."""
    artefacts = [name for name in FP32_ARTEFACTS if _wanted("fp32", only) or name in only]
    if artefacts:
        yield from _event_timed(data, out, artefacts)
    for gpu in SERVING_SYSTEMS:
        if _wanted("gemm_bf16", only):
            yield from _serving(out / f"gemm_bf16_{gpu}.npz", serving_gemm(gpu, "bf16"), gpu, "bf16")
        if _wanted("attention_bf16", only):
            yield from _serving(out / f"attention_bf16_{gpu}.npz", serving_attention(gpu), gpu, "bf16")
        if gpu in FP8_GPUS and _wanted("gemm_fp8", only):
            yield from _serving(out / f"gemm_fp8_{gpu}.npz", serving_gemm(gpu, "fp8"), gpu, "fp8")


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or name in only


def _event_timed(data: Path, out: Path, artefacts: Sequence[str]) -> Iterator[Fitted]:
    tables: dict[str, dict[str, list[Measured]]] = {}
    for part in event_tables(data):
        tables.setdefault(part.gpu, {}).setdefault(part.batch.family, []).append(part)
    streams: list[Streamed] = []
    learned: dict[str, list[LearnedModel]] = {artefact: [] for artefact in artefacts}
    added: dict[str, float] = {}
    for gpu, families in tables.items():
        machine = Machine.of(load_gpu(gpu), "fp32")
        if "elementwise" in families:
            stream = fit_streams(families["elementwise"], machine)
            added[gpu] = min(path.added_us for path in stream.path.values())
            streams.append(stream)
            yield Fitted.of("streams", stream)
    for gpu, families in tables.items():
        machine = Machine.of(load_gpu(gpu), "fp32")
        for artefact in artefacts:
            for part in (part for family in FP32_ARTEFACTS[artefact] for part in families.get(family, ())):
                model = event_model(part, machine, added.get(gpu, float(np.mean(list(added.values())))))
                learned[artefact].append(model)
                yield Fitted.of(artefact, model)
    if "gemm_fp32" in learned:
        products = list(model_products(data))
        learned["gemm_fp32"] = [
            unthrottled(m, products) if m.machine.name in THROTTLED else m for m in learned["gemm_fp32"]
        ]
        boards = fit_boards(products, learned["gemm_fp32"])
        save_boards(out / BOARDS_FILE, boards)
        yield from (Fitted.of("boards", board) for board in boards)
    save_streams(out / "streams.json", streams)
    for artefact, models in learned.items():
        save_models(out / f"{artefact}.npz", models)


def event_model(part: Measured, machine: Machine, added_us: float) -> LearnedModel:
    """One op of the event-timed tables. Its floor is the usual reading of its shortest products."""
    family = part.batch.family
    below = family == "gemm"
    usual = SETTINGS.get(part.variant, SETTINGS[family])
    settings = SETTINGS.get(f"{part.variant} {machine.name}", usual)
    anchors = None
    path = EventPath(added_us=added_us)
    if below:
        known = np.nonzero(~part.held_out)[0]
        path = launch_path(
            part.batch.take(known), part.time_us[known], machine, splits=part.variant == "linear"
        )
        most = {key: float(sizes[~part.held_out].max()) for key, sizes in part.batch.dims.items()}
        anchors = gemm_anchors(machine, path.floor_us, part.variant == "bmm", settings.seed, most)
    hidden = small_gemm_us if below else None
    base = BASES.get(part.variant, LIGHT)
    return learn([part], machine, settings, path=path, anchors=anchors, hidden=hidden, base=base)


def _serving(path: Path, parts: Iterator[Measured], gpu: str, dtype: str) -> Iterator[Fitted]:
    """All stacks of one GPU in one model; the stack is a column."""
    found = list(parts)
    rows = sum(len(part.time_us) for part in found)
    thinned = [_thinned(part, min(1.0, MOST_ROWS / rows)) for part in found]
    machine = Machine.of(load_gpu(gpu), dtype)
    model = learn(thinned, machine, SETTINGS[found[0].batch.family], stacks=STACKS)
    model = replace(model, variant="")
    save_models(path, [model])
    yield Fitted.of(path.stem, model)


def _thinned(part: Measured, share: float) -> Measured:
    """All held-out rows, and a fixed random share of the others."""
    if share >= 1.0:
        return part
    rng = np.random.default_rng(len(part.time_us))
    rows = np.nonzero(part.held_out | (rng.random(len(part.time_us)) < share))[0]
    stacks = None if part.stacks is None else [part.stacks[int(i)] for i in rows]
    return replace(
        part,
        batch=part.batch.take(rows),
        time_us=part.time_us[rows],
        stacks=stacks,
        held_out=part.held_out[rows],
    )


@click.command("kernels")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where the artefacts go.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(
        ["fp32", "gemm_fp32", "conv_fp32", "rows_fp32", "gemm_bf16", "gemm_fp8", "attention_bf16", "half"]
    ),
    help="Fit only these.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, out: Path, only: tuple[str, ...], as_json: bool) -> None:
    """Fit the kernel models and print their error on shapes left out of the fit."""
    from stepsight.documents import to_json

    folder = data_folder(data)
    written: list[dict[str, Any]] = []

    def done(one: Fitted) -> None:
        written.append(asdict(one))
        click.echo(
            f"{one.artefact:32s} {one.gpu:16s} {one.model:32s} {one.rows:6d} rows   GMAE {one.gmae:6.2%}",
            err=as_json,
        )

    for fitted in fit_kernels(folder, out, only):
        done(fitted)
    if not only or "half" in only:  # last: half-precision corrections stand on the shipped bf16 models
        from lab.fit.kernels.half import fit_half

        for r in fit_half(folder, out):
            done(Fitted("half", r.gpu, f"{r.family} fp16 {r.variant}", r.rows, r.gmae))
    if as_json:
        click.echo(to_json(written))
