"""One measured run beside its prediction, and how a file of them is scored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lab.score.llm.left_out import is_known, row_id, scoring_knobs
from stepsight.collectives.site import SiteBandwidth
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.llm.answer import answered, naive_us
from stepsight.prediction.llm.compose import AS_SHIPPED, Composer
from stepsight.prediction.memory import fits
from stepsight.score import CHOSEN, gmae, mape
from stepsight.workload.files import parse_workload
from stepsight.workload.llm.memory import stage_memory, usable_bytes
from stepsight.workload.llm.workload import LanguageWorkload


@dataclass(frozen=True, slots=True)
class Case:
    """A measured run: its description, its platform, and what was measured.

    ``document`` None: the tool cannot express it, for the reason in ``lacks``. ``measured_ms`` None: it did
    not run; ``crashed``: because it did not fit, as far as the file says. ``group`` is the part of the file
    that is scored by itself, ``fit_group`` (model and number of GPUs, say) what fits leave out together.
    """

    name: str
    document: dict[str, Any] | None
    platform: str = ""
    overrides: tuple[str, ...] = ()
    measured_ms: float | None = None
    measured_gb: float | None = None
    crashed: bool = False
    lacks: str = ""
    group: str = ""
    site: SiteBandwidth | None = None
    file: str = ""
    fit_group: str = ""

    @property
    def source(self) -> str:
        """Who measured it: the file, or its part."""
        return self.group if self.file == "other_training.csv" else self.file


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case with its prediction (ms, binary GB as the allocator of rank 0 holds them); ``fits`` None: memory
    was not asked for.

    ``predicted_ms`` is made with constants that no row of its group took part in; ``shipped_ms`` with the
    shipped ones, ``without_site_ms`` with the shipped ones and none of the site's figures, as ``stepsight
    predict`` answers (zero where the case has no site).
    """

    case: Case
    predicted_ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    memory_gb: float = 0.0
    fits: bool | None = None
    lacks: str = ""
    naive_ms: float = 0.0
    shipped_ms: float = 0.0
    without_site_ms: float = 0.0

    @property
    def timed(self) -> bool:
        return self.case.measured_ms is not None and self.predicted_ms > 0

    @property
    def error(self) -> float:
        return self.predicted_ms / (self.case.measured_ms or 1.0) - 1

    @property
    def inside(self) -> bool:
        return self.low_ms <= (self.case.measured_ms or 0.0) <= self.high_ms


@dataclass(frozen=True, slots=True)
class FileScore:
    """How the rows of one file came out.

    ``shipped_…``: with the shipped constants and the figures of the rows' site; ``without_site_…``: without
    the latter (None: no row has a site).
    ``bar``, ``fits_bar`` and ``memory_bar`` are those of ``mape``, ``fits_right`` and ``memory_mape``.
    ``exposure``: how blind the rows are (`Score`).
    """

    file: str
    rows: int
    expressed: int
    timed: int
    mape: float
    gmae: float
    inside: float
    fits_right: float | None = None
    fits_rows: int = 0
    memory_mape: float | None = None
    shipped_mape: float = 0.0
    shipped_gmae: float = 0.0
    lacking: dict[str, int] = field(default_factory=dict)
    bar: float | None = None
    note: str = ""
    fits_bar: float | None = None
    memory_bar: float | None = None
    memory_rows: int = 0
    memory_gmae: float | None = None
    without_site_mape: float | None = None
    without_site_gmae: float | None = None
    exposure: str = CHOSEN


_PLATFORMS: dict[tuple[str, tuple[str, ...], int], Platform] = {}


def platform_of(name: str, overrides: tuple[str, ...] = (), site: SiteBandwidth | None = None) -> Platform:
    """Platforms are loaded once: their models remember what they were asked."""
    key = (name, overrides, id(site))
    if key not in _PLATFORMS:
        _PLATFORMS[key] = replace(load_platform(name, overrides), site=site)
    return _PLATFORMS[key]


def outcome(case: Case, *, memory_only: bool = False) -> Outcome:
    """Predict one case; what cannot be expressed says why."""
    if case.document is None:
        return Outcome(case, lacks=case.lacks or "not expressible")
    try:
        workload = parse_workload(case.document, case.name)
        platform = platform_of(case.platform, case.overrides, case.site)
        peak = workload.memory().peak_bytes
        does_fit = fits(peak, platform.spec.gpu.usable_bytes)
        if case.crashed or memory_only:
            return Outcome(case, memory_gb=peak / 2**30, fits=does_fit)
        if not isinstance(workload, LanguageWorkload):
            return Outcome(case, lacks="not a language model")
        composer = Composer(workload.config, platform.with_ranks(workload.ranks))
    except StepsightError as error:
        if case.crashed:  # a layout that cannot be built does not run
            return Outcome(case, fits=False)
        return Outcome(case, lacks=_reason(case, error))
    row = row_id(case.file, case.name)
    known = is_known(case.source, row, case.fit_group)
    found = answered(composer, known_source=known)
    knobs = scoring_knobs(composer, case.source, row, case.fit_group)
    moved = composer.step(knobs=knobs).step_us / found.step_us if knobs != AS_SHIPPED else 1.0
    return Outcome(
        case,
        moved * found.step_us / 1e3,
        moved * found.low_us / 1e3,
        moved * found.high_us / 1e3,
        _held_bytes(composer) / 2**30,
        does_fit,
        naive_ms=naive_us(found.composed) / 1e3,
        shipped_ms=found.step_us / 1e3,
        without_site_ms=_without_site_ms(workload, case),
    )


def _without_site_ms(workload: LanguageWorkload, case: Case) -> float:
    """The step on a platform as it ships; zero for a case without a site, which is predicted so anyway."""
    if case.site is None:
        return 0.0
    platform = platform_of(case.platform, case.overrides).with_ranks(workload.ranks)
    return Composer(workload.config, platform).step().step_us / 1e3


def _held_bytes(composer: Composer) -> float:
    """What the caching allocator of the first rank holds: free blocks too, as far as there is room."""
    held = stage_memory(composer.c)[0]
    room = usable_bytes(composer.pricer.platform.spec.gpu.memory_gb)
    return max(held.total, min(held.reserved, room))


def priced(case: Case) -> Composer | None:
    """A case's step, ready to be composed; None where it cannot be expressed."""
    try:
        workload = parse_workload(case.document or {}, case.name)
        if not isinstance(workload, LanguageWorkload):
            return None
        platform = platform_of(case.platform, case.overrides, case.site)
        return Composer(workload.config, platform.with_ranks(workload.ranks))
    except StepsightError:
        return None


def _reason(case: Case, error: StepsightError) -> str:
    """What an error says, without the row's own name and figures."""
    text = str(error).split("\n")[0].replace(f"{case.name}: ", "")
    return re.sub(r"\d+", "n", text)


def scored(
    file: str, outcomes: Sequence[Outcome], bar: float | None = None, note: str = "",
    *, fits_bar: float | None = None, memory_bar: float | None = None, exposure: str = CHOSEN,
) -> FileScore:  # fmt: skip
    """The score of one file's rows."""
    timed = [o for o in outcomes if o.timed]
    measured = [o.case.measured_ms or 0.0 for o in timed]
    ran = [o for o in outcomes if o.fits is not None]
    any_crashed = any(o.case.crashed for o in ran)
    with_memory = [o for o in timed if o.case.measured_gb]
    measured_gb = [o.case.measured_gb or 0.0 for o in with_memory]
    lacking: dict[str, int] = {}
    for o in outcomes:
        if o.lacks:
            lacking[o.lacks] = lacking.get(o.lacks, 0) + 1
    time = _errors([o.predicted_ms for o in timed], measured) or (0.0, 0.0)
    shipped = _errors([o.shipped_ms for o in timed], measured) or (0.0, 0.0)
    memory = _errors([o.memory_gb for o in with_memory], measured_gb)
    user = _as_a_user(timed) if any(o.case.site for o in timed) else None
    return FileScore(
        file,
        len(outcomes),
        sum(not o.lacks for o in outcomes),
        len(timed),
        *time,
        sum(o.inside for o in timed) / len(timed) if timed else 0.0,
        sum(o.fits != o.case.crashed for o in ran) / len(ran) if any_crashed else None,
        len(ran) if any_crashed else 0,
        memory_mape=memory[0] if memory else None,
        shipped_mape=shipped[0],
        shipped_gmae=shipped[1],
        lacking=dict(sorted(lacking.items(), key=lambda item: -item[1])),
        bar=bar,
        note=note,
        fits_bar=fits_bar,
        memory_bar=memory_bar,
        memory_rows=len(with_memory),
        memory_gmae=memory[1] if memory else None,
        without_site_mape=user[0] if user else None,
        without_site_gmae=user[1] if user else None,
        exposure=exposure,
    )


def _as_a_user(timed: Sequence[Outcome]) -> tuple[float, float] | None:
    """Errors of the shipped constants without any figure of a row's site."""
    predicted = [o.without_site_ms if o.case.site else o.shipped_ms for o in timed]
    return _errors(predicted, [o.case.measured_ms or 0.0 for o in timed])


def _errors(predicted: Sequence[float], measured: Sequence[float]) -> tuple[float, float] | None:
    """MAPE and GMAE; None without rows."""
    return (mape(predicted, measured), gmae(predicted, measured)) if measured else None
