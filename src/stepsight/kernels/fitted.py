"""What was fitted and ships, as one GPU uses it: learned tables, streaming rates, corrections, boards."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Estimates
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.columns import Batch, beyond_shapes, joined
from stepsight.kernels.learned.model import LearnedModel
from stepsight.kernels.learned.residual import Residual, nearest
from stepsight.kernels.learned.transfer import NO_BOARDS, Boards, Choice, choose
from stepsight.kernels.machine import Machine, feeding_share
from stepsight.kernels.streams import Streamed, measured_stream
from stepsight.kernels.tiles import tiled_us

C = area("kernels")


@dataclass(frozen=True, slots=True)
class Fitted:
    """The fitted models that answer for ``spec``: its own, or its nearest relatives'."""

    spec: GpuSpec
    shipped: tuple[LearnedModel, ...] = ()
    streams: tuple[Streamed, ...] = ()
    residuals: tuple[Residual, ...] = ()
    boards: Boards = NO_BOARDS
    _choices: dict[tuple[str, str, str, bool], Choice | None] = field(default_factory=dict, repr=False)

    def choice(
        self, family: str, dtype: str, variant: str = "", *, at_own_clock: bool = False
    ) -> Choice | None:
        """The learned models that answer for kernels of one family, dtype and variant; None where none do.
        ``at_own_clock``: measurements of another board of the chip are taken at this one's clock."""
        key = (family, dtype, variant, at_own_clock)
        if key not in self._choices:
            self._choices[key] = choose(
                self.shipped, self.spec, family, dtype, variant, self.boards, at_own_clock=at_own_clock
            )
        return self._choices[key]

    def residual(self, family: str, variant: str) -> Residual | None:
        """The correction of this chip, or of the nearest generation."""
        return nearest(self.residuals, family, variant, self.spec)

    def stream(self) -> tuple[Streamed | None, bool]:
        """Measured element-wise rates, and whether they are this chip's own."""
        return measured_stream(self.streams, self.spec)

    def tensor_share(self, dtype: str) -> float:
        """What the board keeps up of its tensor cores' peak, over A100."""
        return self.boards.share(Machine.of(self.spec, dtype), dtype, "bmm") * feeding_share(self.spec, dtype)

    def learned(self, batch: Batch, chosen: Choice) -> Estimates:
        """The chosen models' times."""
        if chosen.tiled:
            time_us = chosen.start_us + tiled_us(batch, chosen.machines[0])
            return Estimates.uniform(time_us, chosen.source, chosen.spread, chosen.note)
        logs, far = [], np.zeros(len(batch))
        for model, machine in zip(chosen.models, chosen.machines, strict=True):
            time_us, outside = model.time_us(batch, machine)
            logs.append(np.log(time_us))
            far = np.maximum(far, outside)
        if chosen.siblings:
            others = (m.time_us(batch, m.machine)[0] for m in chosen.siblings)
            logs = [np.minimum.reduce([*logs, *map(np.log, others)])]
        # Relatives err towards their own library's weak spots, of which about half carry over.
        time_us = chosen.factor * np.exp((np.min(logs, axis=0) + np.mean(logs, axis=0)) / 2) + chosen.start_us
        spread = np.hypot(chosen.spread, np.minimum(C.OUTSIDE_TABLE_SPREAD * far, C.MOST_OUTSIDE_SPREAD))
        answer = Estimates.uniform(time_us, chosen.source, chosen.spread, chosen.note)
        for i in np.nonzero(far > C.FAR_OUTSIDE)[0].tolist():
            note = joined(chosen.note, beyond_shapes(chosen.spread, float(spread[i])))
            if note:
                answer.notes[i] = note
        return Estimates(time_us, answer.source, spread, answer.notes)
