"""The energy of a step: what its GPUs' boards draw. Hosts, switches and cooling are not counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepsight.platform.power import Power

if TYPE_CHECKING:
    from stepsight.prediction.answer import Prediction

J_PER_WH = 3600.0


@dataclass(frozen=True, slots=True)
class Energy:
    """Of one step over all GPUs of the job.

    ``clock`` is the share of the boost clock at which average power while computing meets the board's limit.
    ``gpu_w`` is the average power of one board over the step. ``grams_co2`` is known where the
    carbon intensity of the grid is given.
    """

    step_j: float
    step_wh: float
    gpu_w: float
    clock: float
    j_per_token: float | None
    j_per_sample: float | None
    grams_co2: float | None = None


def energy_words(e: Energy) -> str:
    """``61.3 kJ (17.0 Wh) per step, 0.94 J per token, 612 W per GPU, clock 74 % of boost``."""
    joules = f"{e.step_j / 1e3:,.1f} kJ" if e.step_j >= 1e3 else f"{e.step_j:.3g} J"
    words = [f"{joules} ({e.step_wh:,.3g} Wh) per step"]
    if e.j_per_token is not None:
        words.append(f"{e.j_per_token:.3g} J per token")
    elif e.j_per_sample is not None:
        words.append(f"{e.j_per_sample:.3g} J per sample")
    words.append(f"{e.gpu_w:.0f} W per GPU")
    words.append(f"clock {100 * e.clock:.0f} % of boost")
    if e.grams_co2 is not None:
        words.append(f"{e.grams_co2:,.3g} g CO2 per step")
    return ", ".join(words)


def energy(p: Prediction) -> Energy | None:
    """None where the board's power is not known, or every time comes from a trace."""
    power = Power.of(p.gpu) if p.gpu is not None else None
    priced = p.timeline.priced
    if power is None or priced.dynamic_j is None or p.step_us <= 0:
        return None
    gpus, seconds = len(p.ranks), p.step_us / 1e6
    step_j = min(priced.dynamic_j + gpus * power.idle_w * seconds, gpus * power.limit_w * seconds)
    setup = p.setup
    return Energy(
        step_j=step_j,
        step_wh=step_j / J_PER_WH,
        gpu_w=step_j / seconds / gpus,
        clock=priced.clock,
        j_per_token=step_j / setup.tokens if setup and setup.tokens else None,
        j_per_sample=step_j / setup.samples if setup and setup.samples else None,
        grams_co2=None if p.carbon_g_per_kwh is None else step_j / J_PER_WH / 1e3 * p.carbon_g_per_kwh,
    )
