"""``python -m lab score capture --traces``: scripts of examples/capture that write traced runs down again,
against the traces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from stepsight.capture.ranks import Capturing
from stepsight.capture.request import request
from stepsight.capture.step.captured import CapturedStep, load_step, save_step
from stepsight.errors import InputError, StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.predict import predict_captured
from stepsight.program.job import Op
from stepsight.trace.step.job import rank_program, typical_step
from stepsight.trace.step.run import load_trace, measured_step_us

EXAMPLES = Path(__file__).parents[3] / "examples" / "capture"
"""They are part of the repository, not of the package."""


def captured(
    script: str, arguments: Sequence[str], platform: Platform, world: int, keep: Path | None = None
) -> CapturedStep:
    """One rank's step (all ranks of these jobs do the same); kept in ``keep`` and taken from there."""
    path = EXAMPLES / script
    if not path.is_file():
        raise InputError(str(path), "the scripts of the repository are needed", "run it from a checkout")
    name = "-".join([path.stem, platform.name, str(world), *(a.removeprefix("--") for a in arguments)])
    kept = keep / f"{name}.json" if keep else None
    if kept is not None and kept.is_file():
        return load_step(kept)
    step = Capturing(request(platform.spec, str(path), arguments, world=world)).step(script, [0])
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_step(step, kept)
    return step


COUNTED = {
    "products": ("gemm",),
    "convolutions": ("conv", "conv_dgrad", "conv_wgrad"),
    "attention": ("attention", "attention_backward"),
    "norms": ("layer_norm", "layer_norm_backward", "batch_norm", "batch_norm_backward", "rms_norm"),
    "softmax": ("softmax", "softmax_backward"),
    "element-wise": ("elementwise", "dropout", "fill", "copy", "cast", "transpose", "memset"),
    "optimizer": ("multi_tensor", "optimizer"),
}
"""Families of kernels that are counted together."""


@dataclass(frozen=True, slots=True)
class TracedScript:
    """A traced run and the script that does the same, with what is known to differ."""

    name: str
    trace: str
    script: str
    arguments: tuple[str, ...]
    platform: str
    world: int
    differs: str


RUNS = (
    TracedScript(
        "ResNet-50 DDP, 2 A100", "resnet50_ddp_A100_rank0of2", "resnet50_ddp.py",
        ("--batch", "32", "--tf32", "--soft"), "2xA100-SXM4-40G", 2,
        "the traced host takes about 200 µs an operator, so its step is host-bound",
    ),
    TracedScript(
        "ResNet-50 DDP, 8 V100", "liplus_ddp_n31145242_966278", "resnet50_ddp.py", ("--batch", "32"),
        "8xV100-SXM2-32G", 8, "the traced script also computes its metrics",
    ),
    TracedScript(
        "OPT-1.3B ZeRO-1, 8 A800", "liplus_zero1_n122248036_415351", "opt_zero1.py", (), "8xA800-SXM4-80G", 8,
        "DeepSpeed copies, scales and measures gradients one by one; the script does so in other calls",
    ),
    TracedScript(
        "OPT-1.3B ZeRO-1, 8 V100", "liplus_zero1_n31145242_1056079", "opt_zero1.py", ("--dtype", "float16"),
        "8xV100-SXM2-32G", 8, "as above, and DeepSpeed checks fp16 gradients for overflow",
    ),
    TracedScript(
        "modded-nanogpt, 8 H100", "nanogpt_8xH100/traces", "nanogpt_compiled.py", (), "8xH100-SXM", 8,
        "FlashAttention 3 over short windows, kernels of its own (XXT, ReLU²), embeddings updated every "
        "second step; the traced GPU is busy for half of its step",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """What a trace or a capture holds in one step of rank 0."""

    operators: int
    kernels: int
    families: Mapping[str, int]
    collectives: tuple[tuple[str, float], ...]
    gpu_ms: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A traced run and its script; ``problem`` where it could not be captured."""

    run: TracedScript
    traced: Side | None = None
    captured: Side | None = None
    measured_ms: float = 0.0
    predicted_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    problem: str = ""


def compared(data: Path, only: tuple[str, ...] = (), keep: Path | None = None) -> Iterator[Compared]:
    """Every run whose trace is in the folder."""
    folder = data / "traces" if (data / "traces").is_dir() else data
    for run in RUNS:
        if only and not any(text in run.name for text in only):
            continue
        if not (folder / run.trace).exists():
            yield Compared(run, problem=f"{run.trace} is not in {folder}")
            continue
        try:
            yield _compared(run, folder / run.trace, keep)
        except StepsightError as error:
            yield Compared(run, problem=str(error))


def _compared(run: TracedScript, trace: Path, keep: Path | None) -> Compared:
    platform = load_platform(run.platform)
    step = captured(run.script, run.arguments, platform, run.world, keep)
    made = predict_captured(step, platform)
    loaded = load_trace(sorted(trace.rglob("*.json*"))[0])
    rank = loaded.ranks[0]
    program = rank_program(loaded, rank, typical_step(loaded))
    busy = sum(launch.gpu[0].dur for op in program.ops for launch in op.launches if launch.gpu)
    return Compared(
        run, _side([t.op for t in program.ops], busy / 1e3),
        _side(step.job.programs[0].ops, made.ranks[0].gpu_active_us / 1e3),
        measured_step_us(loaded) / 1e3, made.step_us / 1e3, made.low_us / 1e3, made.high_us / 1e3,
    )  # fmt: skip


def _side(ops: tuple[Op, ...] | list[Op], gpu_ms: float) -> Side:
    kernels = Counter(k.family for op in ops for k in op.kernels)
    families = {name: sum(kernels[f] for f in members) for name, members in COUNTED.items()}
    families["other"] = sum(kernels.values()) - sum(families.values())
    sent = tuple((op.collective.kind, float(op.collective.bytes)) for op in ops if op.collective)
    return Side(len(ops), sum(kernels.values()), families, sent, gpu_ms)


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
