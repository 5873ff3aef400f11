"""One measured run beside its prediction, and how a file of them is scored."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepsight.collectives.site import SiteBandwidth
from stepsight.collectives.stalls import HostState
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.llm.allocator import needed_bytes, reserved_bytes, usual_bytes
from stepsight.prediction.llm.answer import answered, naive_us
from stepsight.prediction.llm.compose import AS_SHIPPED, Composer, Knobs
from stepsight.prediction.llm.slow_runs import possible_states, slow_state
from stepsight.prediction.memory import fits
from stepsight.score import gmae, mape
from stepsight.validate.llm.left_out import is_known, row_id, scoring_knobs
from stepsight.workload.files import parse_workload
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
    shipped ones. ``told``: time and memory in the state that the measured time tells, where the runs of a
    site were in several.
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
    told: tuple[float, float] | None = None

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
    """How the rows of one file came out."""

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
    state_told_mape: float | None = None
    state_told_memory_mape: float | None = None
    lacking: dict[str, int] = field(default_factory=dict)
    bar: float | None = None
    note: str = ""


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
    found = answered(composer, known_source=known, measured=True)
    knobs = scoring_knobs(composer, case.source, row, case.fit_group)
    state = slow_state(composer) if found.runs.is_slow else None
    moved = composer.step(knobs=knobs, state=state).step_us / found.step_us if knobs != AS_SHIPPED else 1.0
    return Outcome(
        case,
        moved * found.step_us / 1e3,
        moved * found.low_us / 1e3,
        moved * found.high_us / 1e3,
        reserved_bytes(composer, found.runs) / 2**30,
        does_fit,
        naive_ms=naive_us(found.composed) / 1e3,
        shipped_ms=found.step_us / 1e3,
        told=_told(composer, knobs, case.measured_ms),
    )


def _told(composer: Composer, knobs: Knobs, measured_ms: float | None) -> tuple[float, float] | None:
    """Time and memory in the state of the site's runs whose time is nearest to the measured one."""
    if measured_ms is None or len(possible_states(composer)) == 1:
        return None
    state = state_told_by(composer, measured_ms)
    waits = state == slow_state(composer)
    held = needed_bytes(composer) if waits else usual_bytes(composer, composer.step())
    return composer.step(knobs=knobs, state=state).step_us / 1e3, held / 2**30


def state_told_by(composer: Composer, measured_ms: float) -> HostState:
    """The state of a site's runs that a measured time lies nearest to."""
    states = possible_states(composer)
    if len(states) == 1:
        return states[0]
    return min(states, key=lambda s: abs(math.log(composer.step(state=s).step_us / (1e3 * measured_ms))))


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


def scored(file: str, outcomes: Sequence[Outcome], bar: float | None = None, note: str = "") -> FileScore:
    """The score of one file's rows."""
    timed = [o for o in outcomes if o.timed]
    predicted, measured = [o.predicted_ms for o in timed], [o.case.measured_ms or 0.0 for o in timed]
    ran = [o for o in outcomes if o.fits is not None]
    any_crashed = any(o.case.crashed for o in ran)
    with_memory = [o for o in timed if o.case.measured_gb]
    several = any(o.told for o in timed)
    lacking: dict[str, int] = {}
    for o in outcomes:
        if o.lacks:
            lacking[o.lacks] = lacking.get(o.lacks, 0) + 1
    return FileScore(
        file,
        len(outcomes),
        sum(not o.lacks for o in outcomes),
        len(timed),
        mape(predicted, measured) if timed else 0.0,
        gmae(predicted, measured) if timed else 0.0,
        sum(o.inside for o in timed) / len(timed) if timed else 0.0,
        sum(o.fits != o.case.crashed for o in ran) / len(ran) if any_crashed else None,
        len(ran) if any_crashed else 0,
        mape([o.memory_gb for o in with_memory], [o.case.measured_gb or 0.0 for o in with_memory])
        if with_memory
        else None,
        mape([o.shipped_ms for o in timed], measured) if timed else 0.0,
        gmae([o.shipped_ms for o in timed], measured) if timed else 0.0,
        mape([o.told[0] if o.told else o.predicted_ms for o in timed], measured) if several else None,
        mape(
            [o.told[1] if o.told else o.memory_gb for o in with_memory],
            [o.case.measured_gb or 0.0 for o in with_memory],
        )
        if several and with_memory
        else None,
        dict(sorted(lacking.items(), key=lambda item: -item[1])),
        bar,
        note,
    )
