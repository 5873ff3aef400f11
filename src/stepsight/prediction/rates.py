"""Throughput, utilisation and assumptions in words: the same in the terminal and on pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepsight.prediction.units import rate, share

if TYPE_CHECKING:
    from stepsight.prediction.answer import Prediction
    from stepsight.program.setup import Setup


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
        found.append(("TFLOP/s per GPU", rate(rates.tflops_per_gpu)))
    if rates.model_flops > 0 and rates.mfu is not None:
        found.append(("MFU", share(rates.mfu)))
    if rates.cost_per_million_tokens is not None:
        found.append(("per million tokens", rate(rates.cost_per_million_tokens)))
    elif rates.cost_per_million_samples is not None:
        found.append(("per million samples", rate(rates.cost_per_million_samples)))
    return found


def peak_words(p: Prediction) -> str:
    """What MFU is measured against."""
    rates = p.throughput
    if rates.mfu is None or rates.peak_tflops is None:
        return ""
    words = f"of the dense {rates.dtype} peak, {rates.peak_tflops:g} TFLOP/s"
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
        words.append(f"recipe {setup.recipe}" + _differing(setup))
    elif setup and setup.framework:
        words.append(f"framework {setup.framework}")
    words.append(
        f"on {ranks:,} of {p.gpus:,} {p.gpu.name if p.gpu else 'GPUs'}" if p.gpus else f"{ranks:,} ranks"
    )
    return ", ".join(words)


def _differing(setup: Setup) -> str:
    """What was stated otherwise than the recipe does."""
    return f" except {', '.join(setup.differs)}" if setup.differs else ""


def _each(setup: Setup, ranks: int) -> str:
    """The batch of one rank; of one replica, where several ranks see the same samples."""
    if ranks == 1 or not setup.samples:
        return " (by default)" if setup.default_batch else ""
    default = ", by default" if setup.default_batch else ""
    return f" ({rate(setup.samples / setup.replicas)} {setup.shared_by}{default})"
