"""One configuration that is asked about, and the answer to it: plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stepsight.prediction.memory import FITS

Setting = str | int | float | bool


def setting_text(value: Setting) -> str:
    """A setting's value in words; a list of names as its members."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and value.startswith('["'):
        return value.strip("[]").replace('"', "").replace(",", "+")
    return str(value)


PRICED, TOO_LARGE, ILLEGAL, BOUNDED, FAILED = "priced", "too large", "illegal", "bounded", "failed"
"""What became of a trial: it has a time; its memory does not fit; the workload refuses it; a bound shows that
it cannot be among the best; the worker that ran it died twice."""


STATUSES = (PRICED, TOO_LARGE, ILLEGAL, BOUNDED, FAILED)


@dataclass(frozen=True, slots=True)
class Trial:
    """A workload's document with ``settings`` put in, on a platform.

    ``settings`` are field paths (``parallel.tensor``) with their values. ``least_fit`` is the probability to
    fit into memory below which nothing is priced; ``intervals`` asks for the step's interval as well.
    """

    settings: Mapping[str, Setting]
    platform: str
    overrides: tuple[str, ...] = ()
    price_per_gpu_hour: float | None = None
    least_fit: float = 0.0
    intervals: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """The answer to a trial.

    ``memory_gb`` is what the fullest rank needs and ``usable_gb`` what it may take of its GPU, both in 1e9
    bytes; ``fit`` is the probability that it fits. ``shares`` say where the step goes, as shares of it, under
    the names of a prediction's breakdown; a language model's ``exposed AXIS`` communication is by axis.
    ``energy_j`` is what all boards draw in a step; None where their power is not known. ``framework`` is the
    one that a language model's row assumes. ``reason`` says why a trial has no time.
    """

    settings: Mapping[str, Setting]
    platform: str
    status: str = PRICED
    ranks: int = 0
    step_time_us: float = 0.0
    low_us: float = 0.0
    high_us: float = 0.0
    memory_gb: float = 0.0
    usable_gb: float = 0.0
    fit: float = 0.0
    samples_per_s: float = 0.0
    tokens_per_s: float = 0.0
    mfu: float = 0.0
    cost_per_step: float | None = None
    energy_j: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    framework: str = ""

    @property
    def priced(self) -> bool:
        return self.status == PRICED

    @property
    def fits(self) -> bool:
        """Whether the fullest rank more likely than not fits: the verdict of `stepsight predict`."""
        return self.fit >= FITS

    @property
    def cost_per_million_tokens(self) -> float | None:
        """In the currency of the price."""
        if self.cost_per_step is None or self.tokens_per_s <= 0:
            return None
        return self.cost_per_step / (self.tokens_per_s * self.step_time_us / 1e6) * 1e6

    def cost_of(self, samples: float) -> float | None:
        """What this many samples cost, an epoch for one."""
        if self.cost_per_step is None or self.samples_per_s <= 0:
            return None
        return self.cost_per_step / (self.samples_per_s * self.step_time_us / 1e6) * samples

    def record(self) -> dict[str, Any]:
        """One flat row, as a table or a DataFrame takes it."""
        plain = {k: v for k, v in asdict(self).items() if k not in ("settings", "shares")}
        shares = {f"share {name}": value for name, value in self.shares.items()}
        plain["fits"] = self.fits
        return {**self.settings, **plain, "cost_per_million_tokens": self.cost_per_million_tokens, **shares}


def frameworks_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """The frameworks that rows assume, each once."""
    return tuple(dict.fromkeys(r.framework for r in rows if r.framework))


def failed(trial: Trial) -> Row:
    """The row of a trial whose worker died twice."""
    return Row(trial.settings, trial.platform, FAILED, reason="its worker died, twice")
