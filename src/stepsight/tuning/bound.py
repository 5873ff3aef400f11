"""The least a configuration can take: its stages' kernels and the collectives that compute waits for.

No prediction lies below it: clocks are at their boost, the host takes no time, and what may overlap with
compute does so for nothing. A configuration whose bound is above what is already found cannot be better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepsight.errors import StepsightError
from stepsight.platform.load import Platform
from stepsight.tuning.evaluate import costed, with_settings
from stepsight.tuning.trial import BOUNDED, Row, Trial
from stepsight.workload.files import parse_workload, resolve
from stepsight.workload.llm.blocks import Blocks
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.cut import pieces
from stepsight.workload.llm.stages import Pieces
from stepsight.workload.llm.work import Pass
from stepsight.workload.llm.workload import LanguageWorkload


class Bound:
    """Lower bounds on one platform; configurations share most of their passes, which are priced once."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._known: dict[tuple[object, ...], float] = {}

    def row(self, document: Mapping[str, Any], trial: Trial, where: str) -> Row:
        """A trial's row with a lower bound of the step; without a time where nothing is known about the
        workload."""
        spec = self.platform.spec
        row = Row(trial.settings, trial.platform, BOUNDED)
        try:
            given = parse_workload(with_settings(document, trial.settings, where), where)
            workload = resolve(given, spec.ranks, spec.gpu)
            if not isinstance(workload, LanguageWorkload) or workload.eager is not None:
                return row
            c = workload.config
            us = self.language_us(c)
        except StepsightError:
            return row
        tokens_per_s = 1e6 * c.tokens_per_step / us
        timed = replace(
            row, ranks=c.ranks, step_time_us=us, samples_per_s=tokens_per_s / c.sequence,
            tokens_per_s=tokens_per_s, reason=f"takes at least {us / 1e3:.1f} ms",
        )  # fmt: skip
        return costed(timed, trial, self.platform)

    def language_us(self, c: LanguageConfig) -> float:
        """The fullest stage's passes, and the bubble that a schedule cannot avoid."""
        s, maker, spans = c.layout, Pieces(c, 1), Blocks(c).spans
        works = [maker.work(piece) for piece in pieces(c)]
        each = [sum(self._pass_us(run.work, spans) for run in (*w.forward, *w.backward)) for w in works]
        stages = [sum(each[stage :: s.pipeline]) for stage in range(s.pipeline)]
        bubble = 0.0 if s.schedule == "zero_bubble" else (s.pipeline - 1) / s.virtual_stages
        return s.micro_batches * max(stages) + bubble * min(stages)

    def _pass_us(self, work: Pass, spans: Mapping[str, tuple[int, ...]]) -> float:
        """Kernels one after the other, and messages that nothing overlaps with."""
        waited = {m: n for m, n in work.messages.items() if not m.concurrent and not m.hidden}
        key = (work, *(spans[axis] for axis in dict.fromkeys(m.axis for m in waited)))
        if key not in self._known:
            conditions = self.platform.conditions
            known = conditions.known_kernels(work.kernels)
            us = sum(n * known[kernel].estimate.time_us for kernel, n in work.kernels.items())
            for m, n in waited.items():
                us += n * conditions.collective(m.axis, m.kind, m.bytes, spans[m.axis], m.copies).time_us
            self._known[key] = us
        return self._known[key]
