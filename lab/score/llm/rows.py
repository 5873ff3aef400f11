"""One measured run with its prediction, and how a file of them is scored.

Every row is predicted twice with what ships: as published in full, and as a user asks (what the row states,
and the recipe's name).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from lab.datasets.llm.case import Case
from stepsight.collectives.site import SiteBandwidth
from stepsight.errors import StepsightError
from stepsight.hardware.spec import usable_bytes
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.language import LanguageStep
from stepsight.prediction.memory import FITS, fit_probability
from stepsight.prediction.runnable import check_runnable
from stepsight.score import gmae, mape
from stepsight.workload.files import parse_workload, resolve
from stepsight.workload.llm.memory import stage_memory
from stepsight.workload.llm.workload import LanguageWorkload

if TYPE_CHECKING:
    from lab.score.llm.scaling import Pair


@dataclass(frozen=True, slots=True)
class Answer:
    """A prediction in ms and binary GB; ``step_ms`` is 0 without a time, ``lacks`` says why."""

    step_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    naive_ms: float = 0.0
    active_gb: float = 0.0
    reserved_gb: float = 0.0
    fits: bool | None = None
    fit_probability: float = 0.0
    lacks: str = ""

    def inside(self, measured_ms: float) -> bool:
        return self.low_ms <= measured_ms <= self.high_ms


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case, predicted in full and as a user asks."""

    case: Case
    full: Answer
    asked: Answer

    @property
    def timed(self) -> bool:
        return self.case.measured_ms is not None and self.full.step_ms > 0

    @property
    def measured_ms(self) -> float:
        return self.case.measured_ms or 0.0

    @property
    def memory_gb(self) -> float:
        """What the file measured, predicted: the allocator's peak of live bytes, or all that it holds."""
        return self.full.active_gb if self.case.allocated else self.full.reserved_gb


@dataclass(frozen=True, slots=True)
class FileScore:
    """How the rows of one file came out; errors are fractions.

    ``expressed``: rows that became a workload; ``timed``: those with a measured time; ``as_asked_…``: by the
    row and the recipe's name alone; ``not_slow_…``: without the runs that the file's rule leaves out.
    ``fits_right``: rows that ran or ran out of memory, as predicted; ``likely_ran``: of those given a chance
    of 80 % or more to fit, the share that ran; ``unlikely_ran``: of those given 20 % or less. ``crashes``:
    rows that ran out of memory; without any, nothing is known of a file's calibration. ``bars``
    are those of the fields they name; ``parts`` are publications or models of the file by themselves;
    ``scaling``: configurations on few and on many GPUs.
    """

    file: str
    rows: int
    expressed: int
    timed: int
    mape: float | None = None
    gmae: float | None = None
    inside: float | None = None
    as_asked_timed: int = 0
    as_asked_mape: float | None = None
    as_asked_gmae: float | None = None
    as_asked_inside: float | None = None
    slow_rows: int = 0
    not_slow_mape: float | None = None
    not_slow_gmae: float | None = None
    not_slow_inside: float | None = None
    fits_right: float | None = None
    fits_rows: int = 0
    likely_rows: int = 0
    likely_ran: float | None = None
    unlikely_rows: int = 0
    unlikely_ran: float | None = None
    crashes: int = 0
    memory_mape: float | None = None
    memory_gmae: float | None = None
    memory_rows: int = 0
    lacking: dict[str, int] = field(default_factory=dict)
    bars: dict[str, float] = field(default_factory=dict)
    parts: tuple[FileScore, ...] = ()
    scaling: tuple[Pair, ...] = ()


@cache
def _platform(name: str, overrides: tuple[str, ...]) -> Platform:
    """Platforms are loaded once: their models remember what they were asked."""
    return load_platform(name, overrides)


_AT_SITES: dict[tuple[str, tuple[str, ...], str], Platform] = {}


def platform_of(name: str, overrides: tuple[str, ...] = (), site: SiteBandwidth | None = None) -> Platform:
    """A platform of the catalogue, with what its cluster measured of its network."""
    if site is None:
        return _platform(name, overrides)
    key = (name, overrides, repr(site))
    if key not in _AT_SITES:
        _AT_SITES[key] = replace(load_platform(name, overrides), site=site)
    return _AT_SITES[key]


def forget_platforms() -> None:
    """Load platforms anew: what kernels draw is remembered with them."""
    _platform.cache_clear()
    _AT_SITES.clear()


def outcome(case: Case) -> Outcome:
    """Predict one case; what cannot be expressed says why."""
    if case.layouts:
        return _of_some_layout(case)
    document, asked = case.document, case.asked
    if document is None or asked is None:
        missing = Answer(lacks=case.lacks or "not expressible")
        return Outcome(case, missing, missing)
    full = _answer(case, document, case.site)
    same = asked == document and case.site is None
    return Outcome(case, full, full if same else _answer(case, asked, None))


LAYOUTS = 3
"""Of the layouts that a row leaves open and that fit, how many its interval covers."""


def _of_some_layout(case: Case) -> Outcome:
    """A case whose layout nobody states, in the first layout that fits; the interval covers the next, too."""
    assert case.stated is not None
    found: list[Outcome] = []
    for parallel in case.layouts:
        tried = replace(case, stated={**case.stated, "parallel": parallel}, layouts=())
        if outcome(replace(tried, measured_ms=None)).full.fits:
            found.append(outcome(tried))
        if len(found) == LAYOUTS:
            break
    if not found:
        lacks = Answer(lacks="no layout fits")
        return Outcome(case, lacks, lacks)
    full, asked = (
        replace(answers[0], low_ms=min(a.low_ms for a in answers), high_ms=max(a.high_ms for a in answers))
        for answers in ([o.full for o in found], [o.asked for o in found])
    )
    return replace(found[0], full=full, asked=asked)


def _answer(case: Case, document: dict[str, Any], site: SiteBandwidth | None) -> Answer:
    try:
        platform = platform_of(case.platform, case.overrides, site)
        workload = resolve(parse_workload(document, case.name), platform.spec.ranks, platform.spec.gpu)
        if not isinstance(workload, LanguageWorkload):
            return Answer(lacks="not a language model")
        check_runnable(workload, platform)
        peak = workload.memory().peak_bytes
        likely = fit_probability(peak, platform.spec.gpu.usable_bytes)
        first = stage_memory(workload.config)[0]
        reserved = max(first.total, min(first.reserved, usable_bytes(platform.spec.gpu.memory_gb)))
        memory = Answer(
            active_gb=peak / 2**30, reserved_gb=reserved / 2**30, fits=likely >= FITS, fit_probability=likely
        )
        if case.measured_ms is None:
            return memory
        step = LanguageStep(workload.config, platform.with_ranks(workload.ranks))
        found = step.answer()
    except StepsightError as error:
        if case.crashed:  # a layout that cannot be built does not run
            return Answer(fits=False)
        return Answer(lacks=_reason(case, error))
    return replace(
        memory, step_ms=found.step_us / 1e3, low_ms=found.low_us / 1e3, high_ms=found.high_us / 1e3,
        naive_ms=step.naive_us() / 1e3,
    )  # fmt: skip


def _reason(case: Case, error: StepsightError) -> str:
    """What an error says, without the row's own name and figures."""
    text = str(error).split("\n")[0].replace(f"{case.name}: ", "")
    shown = re.split(r"; | \(known", text)[0]
    return re.sub(r"(?<![\w.-])\d+(?![\w.-])", "n", shown)


def scored(
    file: str,
    outcomes: Sequence[Outcome],
    bars: dict[str, float] | None = None,
    parts: Sequence[FileScore] = (),
) -> FileScore:
    """The score of one file's rows."""
    timed = [o for o in outcomes if o.timed]
    usual = [o for o in timed if not o.case.slow]
    asked = [o for o in timed if o.asked.step_ms > 0]
    ran = [o for o in outcomes if o.full.fits is not None]
    likely, unlikely = (
        [o for o in ran if low <= o.full.fit_probability <= high] for low, high in ((0.8, 1.0), (0.0, 0.2))
    )
    memory = [o for o in outcomes if o.case.measured_gb and not o.case.crashed and o.memory_gb > 0]
    held = [o.case.measured_gb or 0.0 for o in memory]
    lacking = Counter(o.full.lacks for o in outcomes if o.full.lacks)
    errors = {
        **_errors("", [(o.full, o) for o in timed]),
        **_errors("as_asked_", [(o.asked, o) for o in asked]),
        **_errors("not_slow_", [(o.full, o) for o in usual] if len(usual) < len(timed) else []),
    }
    return FileScore(
        file,
        rows=len(outcomes),
        expressed=sum(not o.full.lacks for o in outcomes),
        timed=len(timed),
        as_asked_timed=len(asked),
        slow_rows=len(timed) - len(usual),
        fits_right=_share([o.full.fits != o.case.crashed for o in ran]),
        fits_rows=len(ran),
        likely_rows=len(likely),
        likely_ran=_share([not o.case.crashed for o in likely]),
        unlikely_rows=len(unlikely),
        unlikely_ran=_share([not o.case.crashed for o in unlikely]),
        crashes=sum(o.case.crashed for o in ran),
        memory_mape=mape([o.memory_gb for o in memory], held) if memory else None,
        memory_gmae=gmae([o.memory_gb for o in memory], held) if memory else None,
        memory_rows=len(memory),
        lacking=dict(lacking.most_common()),
        bars=dict(bars or {}),
        parts=tuple(parts),
        **errors,
    )


def _errors(reading: str, answers: Sequence[tuple[Answer, Outcome]]) -> dict[str, Any]:
    """MAPE, GMAE and the share inside the interval, by the names of a reading's fields; none without rows."""
    if not answers:
        return {}
    predicted, measured = [a.step_ms for a, _ in answers], [o.measured_ms for _, o in answers]
    return {
        f"{reading}mape": mape(predicted, measured), f"{reading}gmae": gmae(predicted, measured),
        f"{reading}inside": _share([a.inside(o.measured_ms) for a, o in answers]),
    }  # fmt: skip


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None
