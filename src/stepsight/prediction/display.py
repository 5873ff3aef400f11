"""Figures as people read them, the same in the terminal, on pages and in notebooks: units, words, colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from stepsight.prediction.breakdown import EXPOSED, IDLE, WAITING
from stepsight.simulate.price import COMMUNICATION
from stepsight.terminal import counted

if TYPE_CHECKING:
    from stepsight.prediction.answer import Prediction
    from stepsight.prediction.throughput import Energy
    from stepsight.program.setup import Setup


def time(us: float) -> str:
    """12.3 µs, 4.56 ms, 7.89 s."""
    size, sign = abs(us), "−" if us <= -0.05 else ""
    if size < 1e3:
        return f"{sign}{size:.1f} µs"
    return f"{sign}{size / 1e3:.2f} ms" if size < 1e6 else f"{sign}{size / 1e6:.2f} s"


def size(count: float) -> str:
    """1.50 KB, 2.00 GB: decimal, as bandwidths are."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


def share(fraction: float) -> str:
    """12.3 %."""
    return f"{100 * fraction:.1f} %"


def change(fraction: float, digits: int = 0) -> str:
    """+12 %, −3 %: by how much something is more or less than another."""
    shown = f"{100 * fraction:+.{digits}f}"
    return f"{shown if float(shown) else shown.replace('-', '+')} %".replace("-", "−")


def rate(value: float) -> str:
    """12.3, 4,567: a number of things, to three digits below a thousand."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Look:
    """A category's word and its colour's class in ``assets/page.css``."""

    word: str
    colour: str


_LOOKS: Mapping[str, Look] = {
    "gemm": Look("GEMM", "gemm"),
    "attention": Look("attention", "attention"),
    "conv": Look("convolution", "conv"),
    "embedding": Look("embedding", "embedding"),
    "vector": Look("vector", "vector"),
    "optimizer": Look("optimizer", "optimizer"),
    "copy": Look("copy", "copy"),
    COMMUNICATION: Look("communication", "communication"),
    EXPOSED: Look("communication, exposed", "communication"),
    WAITING: Look("waiting for other ranks", "waiting"),
    IDLE: Look("idle, host-bound", "idle"),
    "host": Look("host", "host"),
}

_SOURCES: Mapping[str, tuple[str, str]] = {
    "trace": ("durations in the trace", "seen"),
    "measured": ("measurements of this hardware", "best"),
    "learned": ("models fitted on this GPU", "fitted"),
    "transferred": ("models of a similar GPU", "carried"),
    "roofline": ("speed of light × an assumed efficiency", "light"),
    "default": ("defaults for unknown operations", "unknown"),
}
_CURVES: Mapping[str, str] = {
    "learned": "this hardware's curves of other groups",
    "transferred": "other clusters",
}
"""What the same sources are of collectives."""


def look(category: str) -> Look:
    """How a category is shown; one that nobody listed keeps its own name."""
    return _LOOKS.get(category) or Look(category.replace("_", " "), "other")


def source_look(label: str, *, collective: bool = False) -> Look:
    """How a source of times of kernels, or of collectives, is shown, by its label."""
    word, colour = _SOURCES.get(label, (label, "other"))
    return Look(_CURVES.get(label, word) if collective else word, colour)


def rate_lines(p: Prediction) -> list[tuple[str, str]]:
    """Name and value of every rate that is known: samples/s, tokens/s, TFLOP/s per GPU, MFU."""
    rates = p.throughput
    found: list[tuple[str, str]] = []
    if rates.tokens_per_s is not None:
        found.append(("tokens/s", rate(rates.tokens_per_s)))
        found.append(("tokens/s per GPU", rate(rates.tokens_per_s_per_gpu or 0.0)))
    elif rates.samples_per_s is not None:
        found.append((f"{p.setup.sample_kind if p.setup else 'samples'}/s", rate(rates.samples_per_s)))
    if rates.model_flops > 0:
        found.append(_flops(rates.tflops_per_gpu))
    if rates.model_flops > 0 and rates.mfu is not None:
        found.append(("MFU", share(rates.mfu)))
    if rates.cost_per_million_tokens is not None:
        found.append(("per million tokens", rate(rates.cost_per_million_tokens)))
    elif rates.cost_per_million_samples is not None:
        found.append(("per million samples", rate(rates.cost_per_million_samples)))
    return found


def _flops(tflops: float) -> tuple[str, str]:
    """Unit and value: a toy's step does millions a second."""
    unit, scale = (
        ("TFLOP/s", 1.0) if tflops >= 0.1 else ("GFLOP/s", 1e-3) if tflops >= 1e-4 else ("MFLOP/s", 1e-6)
    )
    return f"{unit} per GPU", rate(tflops / scale)


def _scaled(value: float, unit: str) -> str:
    prefix, scale = next((prefix, scale) for prefix, scale, least in _PREFIXES if value >= least)
    return f"{value / scale:,.3g} {prefix}{unit}"


_PREFIXES = (("M", 1e6, 1e6), ("k", 1e3, 1e3), ("", 1.0, 0.01), ("m", 1e-3, 1e-4), ("µ", 1e-6, 0.0))
"""With what they multiply, and from which figure on they are used."""


def energy_words(e: Energy, kind: str = "samples") -> str:
    """``61.3 kJ (17.0 Wh) per step, 0.94 J per token, 612 W per GPU, clock 74 % of boost``."""
    words = [f"{_scaled(e.step_j, 'J')} ({_scaled(e.step_wh, 'Wh')}) per step"]
    if e.j_per_token is not None:
        words.append(f"{_scaled(e.j_per_token, 'J')} per token")
    elif e.j_per_sample is not None:
        words.append(f"{_scaled(e.j_per_sample, 'J')} per {kind.removesuffix('s')}")
    words.append(f"{e.gpu_w:.0f} W per GPU")
    words.append(f"clock {100 * e.clock:.0f} % of boost")
    if e.grams_co2 is not None:
        words.append(f"{_scaled(e.grams_co2, 'g')} CO2 per step")
    return ", ".join(words)


def peak_words(p: Prediction) -> str:
    """What MFU is measured against."""
    rates = p.throughput
    if rates.mfu is None or rates.peak_tflops is None:
        return ""
    words = f"of the dense {rates.dtype} peak, {rates.peak_tflops:.5g} TFLOP/s"
    if rates.mfu_of_bf16_peak is not None:
        words += f"; {share(rates.mfu_of_bf16_peak)} of the bf16 peak"
    return words + (f"; HFU {share(rates.hfu)} (with recomputation)" if rates.hfu is not None else "")


def assumed(p: Prediction) -> str:
    """Batch, sequence, precision, parallelism and GPUs of a prediction, in one line."""
    setup, ranks = p.setup, len(p.ranks)
    words: list[str] = []
    if setup and setup.samples:
        words.append(f"batch {rate(setup.samples)}{_each(setup, ranks)}")
    if setup and setup.sequence:
        words.append(f"sequence {setup.sequence:,}")
    if setup and setup.precision:
        words.append(setup.precision)
    axes = [f"{name} {size:,}" for name, size in (setup.parallel if setup else ()) if size > 1]
    if axes:
        words.append("parallel: " + " × ".join(axes))
    words += list(setup.details) if setup else []
    if setup and setup.recipe:
        differing = f" except {', '.join(setup.differs)}" if setup.differs else ""
        words.append(f"recipe {setup.recipe}{differing}")
    elif setup and setup.framework:
        words.append(f"framework {setup.framework}")
    words.append(
        f"on {ranks:,} of {p.gpus:,} {p.gpu.name if p.gpu else 'GPUs'}" if p.gpus else counted(ranks, "rank")
    )
    return ", ".join(words)


def _each(setup: Setup, ranks: int) -> str:
    """The batch of one rank; of one replica, where several ranks see the same samples."""
    if ranks == 1 or not setup.samples:
        return " (by default)" if setup.default_batch else ""
    default = ", by default" if setup.default_batch else ""
    return f" ({rate(setup.samples / setup.replicas)} {setup.shared_by}{default})"


def one_line(p: Prediction) -> str:
    """``<Prediction dlrm on 8xH100-SXM: 1.93 ms (1.41 ms to 2.64 ms), 2,120,000 samples/s>``."""
    rates = "".join(f", {value} {name}" for name, value in rate_lines(p)[:1])
    fits = ", does not fit" if p.fits is False else ""
    return (
        f"<Prediction {p.workload or 'step'} on {p.platform}: {time(p.step_time_us)} "
        f"({time(p.low_us)} to {time(p.high_us)}){rates}{fits}>"
    )


def as_html(p: Prediction) -> str:
    """What a notebook shows: the number, its interval, what was assumed, and where the step goes."""
    head = f"{escape(p.workload or 'step')} on {escape(p.platform)}: <b>{time(p.step_time_us)}</b> per step"
    lines = [
        f"{head} (90 % interval {time(p.low_us)} to {time(p.high_us)})",
        f"assumed: {escape(assumed(p))}",
        ", ".join(f"{value} {name}" for name, value in rate_lines(p)),
    ]
    if p.memory and not p.memory.fits:
        lines.insert(0, f'<b style="color:#b3261e">Does not fit, by {size(p.memory.excess_bytes)}.</b>')
    titles = "".join(f"<th>{name}</th>" for name in ("part", "time", "share", "step without it"))
    rows = "".join(_row(row) for row in p.rows())
    return f"<div>{'<br>'.join(line for line in lines if line)}<table><tr>{titles}</tr>{rows}</table></div>"


def _row(row: dict[str, Any]) -> str:
    free = time(row["step_if_free_us"]) if row["step_if_free_us"] is not None else ""
    cells = (escape(look(row["part"]).word), time(row["time_us"]), share(row["share"]), free)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
