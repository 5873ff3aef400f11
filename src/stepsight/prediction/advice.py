"""``stepsight.advise``: changes that can be made today, each applied to the job and simulated."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any

from stepsight.capturing.step import CapturedStep
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform, with_gpus
from stepsight.prediction.answer import Prediction
from stepsight.prediction.changes import (
    ADAPTERS,
    BATCH,
    Change,
    Rewrite,
    changes_of,
    groups_with_room,
    rewrites_of,
    sharded,
    smaller_batches,
    tables_with_room,
)
from stepsight.prediction.display import size, time
from stepsight.prediction.learn.response import AskedStep, JobFile, ask
from stepsight.prediction.memory import fits, largest_batch
from stepsight.prediction.predict import predict, predict_captured
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.files import Workload, resolve
from stepsight.workload.llm.workload import LanguageWorkload

LEAST_GAIN = 0.005
"""Changes that gain less are not advised."""
SAME = 1e-4
MOST_JOINED = 3
"""Changes that make a job fit, with which the fastest change that does not is tried."""
MOST_PAIRED, FEWEST_REMEDIES = 8, 3
"""Changes that save most memory, of which pairs are tried where few single ones make a job fit; the most that
are priced."""
MOST_DOUBLINGS = 10
"""Of the number of GPUs, until a job fits."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change: what to do, and what the job then takes.

    ``gain`` is more work per second, as a fraction. ``beyond_interval``: the gain is larger than the interval
    of the prediction, so that it holds whatever the prediction misses. ``alters``: what may change in the
    trained model. ``done``: of a captured step, what was rewritten.
    """

    name: str
    set_line: str
    code: str
    step_us: float
    gain: float
    beyond_interval: bool
    memory_bytes: float | None
    fits: bool | None
    saved_bytes: float | None
    alters: str = ""
    done: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Advised:
    """The job as it is, and changes in order: by gain, or, where it does not fit, those that make it fit by
    how little time they lose. ``tried`` counts all changes that were simulated; ``more_gpus`` is the platform
    with more GPUs on which the job fits as it is."""

    prediction: Prediction
    changes: tuple[Advice, ...]
    tried: int
    notes: tuple[str, ...] = ()
    more_gpus: str = ""

    def __repr__(self) -> str:
        return f"<Advised {self.prediction.workload}: {len(self.changes)} of {self.tried} changes gain>"

    @property
    def fits(self) -> bool:
        return self.prediction.fits is not False

    def to_dict(self) -> dict[str, Any]:
        p = self.prediction
        return {
            "workload": p.workload,
            "platform": p.platform,
            "step_us": p.step_time_us,
            "low_us": p.low_us,
            "high_us": p.high_us,
            "fits": p.fits,
            "memory_bytes": p.memory.total_bytes if p.memory else None,
            "tried": self.tried,
            "changes": [asdict(change) for change in self.changes],
            "notes": list(self.notes),
        }


def advise(
    workload: str | Path | CapturedStep, platform: Platform | str | Path, *, assignments: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Advised:  # fmt: skip
    """Changes of a job that make it faster, or that make it fit where it does not.

    >>> advise("llama3-8b", "8xH100-SXM").changes[0].set_line  # doctest: +SKIP
    """
    on = platform if isinstance(platform, Platform) else load_platform(platform, overrides)
    if isinstance(workload, CapturedStep):
        return _of_captured(workload, on)
    job = JobFile(workload, tuple(assignments)).on(on)
    given = job.load()
    return _of_captured(given, on) if isinstance(given, CapturedStep) else _of_described(job, on)


def _of_described(job: JobFile, on: Platform) -> Advised:
    base = job.load()
    assert not isinstance(base, CapturedStep)
    p = predict(base, on)
    before, batch = ask(base, on), _default_batch(base, p)

    def advised(changes: Iterable[Change]) -> list[tuple[Change, AskedStep, Advice]]:
        tried = _tried(job, on, before, changes, batch)
        return [(change, after, _advice(change, after, before, p, on)) for change, after in tried]

    def with_room(changes: Iterable[Change], most: int = MOST_PAIRED) -> list[Advice]:
        """Those that fit; the others are not priced."""
        held = (one for one in changes if _held(job, on, _lines(one, batch)))
        return [one for *_, one in advised(islice(held, most)) if one.fits]

    to_fit = sharded(base) if p.fits is False else ()
    found = advised(chain(changes_of(base, on.spec.gpu), to_fit, _with_room(base, p, on)))
    if p.fits is not False:
        return Advised(p, _best([one for *_, one in found]), len(found))
    room = [one for *_, one in found if one.fits]
    if len(room) < FEWEST_REMEDIES:
        saving = [(c, after) for c, after, one in found if not one.fits and (one.saved_bytes or 0.0) > 0]
        room += with_room(_pairs(saving))
    else:
        remedies = sorted((one for one in found if one[2].fits), key=lambda one: -one[2].gain)
        room += with_room(_faster(found, remedies[:MOST_JOINED]))
    more = None
    if not room and isinstance(base, LanguageWorkload):
        groups = groups_with_room(on.spec.ranks, on.spec.gpus_per_node)
        room = with_room(groups, FEWEST_REMEDIES)
    if not room:
        more = _more_gpus(job, on)
        if isinstance(base, LanguageWorkload):
            room = with_room(_with_adapters(on.spec.ranks))
    notes = (_of_more(job, *more),) if more else () if room else p.what_would_help
    changes = tuple(sorted(room, key=lambda one: -one.gain))
    return Advised(p, changes, len(found), tuple(notes), more[1].name if more else "")


def _held(job: JobFile, on: Platform, lines: Sequence[str] = ()) -> bool:
    """Whether the job, with these settings, fits there; without its time."""
    try:
        given = (job.changed(*lines) if lines else job).load()
        if isinstance(given, CapturedStep):
            return False
        found = resolve(given, on.spec.ranks, on.spec.gpu, on.spec.gpus_per_node)
        on.with_ranks(found.ranks)
        return fits(on.learned.memory * found.memory().peak_bytes, on.spec.gpu.usable_bytes)
    except StepsightError:
        return False


def _more_gpus(job: JobFile, on: Platform) -> tuple[JobFile, Platform] | None:
    """The job on the fewest GPUs, doubled each time, on which it fits; tables over all of them."""
    given = job.load()
    stated = isinstance(given, DlrmWorkload) and given.open_ranks is None
    for i in range(1, MOST_DOUBLINGS + 1):
        gpus = on.spec.ranks << i
        larger = with_gpus(on, gpus)
        lines = (f"parallel.ranks={gpus}",) if stated else ()
        if larger is not None and _held(job, larger, lines):
            return job.changed(*lines) if lines else job, larger
    return None


def _of_more(job: JobFile, changed: JobFile, on: Platform) -> str:
    after = ask(changed.load(), on)
    sets = "".join(f" --set {one}" for one in changed.assignments[len(job.assignments) :])
    memory = size(after.memory_bytes or 0.0)
    return f"more GPUs: -p {on.name}{sets}  ({time(after.step_us)} per step, {memory})"


def _default_batch(base: Workload, p: Prediction) -> tuple[str, ...]:
    """The batch of a language model that nobody stated: layouts have their own by default, and changes are
    compared at one."""
    is_language = isinstance(base, LanguageWorkload) and base.eager is None
    if not is_language or p.setup is None or not p.setup.default_batch:
        return ()
    return (f"global_batch={round(p.setup.samples or 0)}",)


def _with_room(base: Workload, p: Prediction, on: Platform) -> Iterator[Change]:
    """The largest batch whose activations fit, where the job does not; tables over more GPUs."""
    if p.memory is None or p.memory.fits or p.setup is None:
        return
    if isinstance(base, DlrmWorkload):
        yield from tables_with_room(base, on.spec.ranks)
    most = largest_batch(p.memory, p.setup)
    most -= most % 8 if most > 8 else 0
    if most < 1 or isinstance(base, LanguageWorkload):
        return
    line = f"batch={most * len(p.ranks)}" if isinstance(base, DlrmWorkload) else f"batch_per_rank={most}"
    yield Change(f"batch of {most:,} per rank", (line,), "batch size", BATCH)


def _best(found: Sequence[Advice]) -> tuple[Advice, ...]:
    """Changes that gain and fit, the largest gain first; of those that do the same, the first."""
    kept: list[Advice] = []
    for one in sorted(found, key=lambda one: -one.gain):
        if one.gain < LEAST_GAIN or one.fits is False:
            continue
        if not any(
            math.isclose(one.step_us, k.step_us, rel_tol=SAME) and k.alters == one.alters for k in kept
        ):
            kept.append(one)
    return tuple(kept)


def _tried(
    job: JobFile, on: Platform, before: AskedStep, changes: Iterable[Change], batch: Sequence[str]
) -> Iterator[tuple[Change, AskedStep]]:
    """Changes that the job can have and that make a difference, with the step after each; a change of the
    layout or the recipe states the ``batch``."""
    for change in changes:
        try:
            changed = job.changed(*_lines(change, batch))
            after = ask(changed.load(), on)
        except StepsightError:
            continue
        same_time = math.isclose(after.step_us, before.step_us, rel_tol=SAME)
        if not same_time or after.memory_bytes != before.memory_bytes:
            change = replace(change, assignments=changed.assignments[len(job.assignments) :])
            yield _with_micro_batch(change, after, before), after


def _lines(change: Change, batch: Sequence[str]) -> tuple[str, ...]:
    lines = change.assignments
    stated = any(line.startswith(("parallel.", "training.recipe=")) for line in lines)
    return (*lines, *batch) if stated else lines


def _with_micro_batch(change: Change, after: AskedStep, before: AskedStep) -> Change:
    """Where the micro-batch is the largest that fits, a change of the memory may change it as well: then it
    is stated."""
    line = f"parallel.micro_batch={after.micro_batch}"
    if after.micro_batch == before.micro_batch or line in change.assignments:
        return change
    name = f"{change.name}, micro-batches of {after.micro_batch}"
    return replace(change, name=name, assignments=(*change.assignments, line))


def _with_adapters(ranks: int) -> Iterator[Change]:
    """Adapters alone, and with what saves most memory next to them."""
    for one in ADAPTERS:
        more = (*one.assignments, "training.recompute=full")
        yield one
        yield replace(one, name=f"{one.name}, full recomputation", assignments=more)
        more = (*more, "parallel.zero=3")
        if ranks > 1:
            yield replace(one, name=f"{one.name}, full recomputation, sharded", assignments=more)


def _pairs(tried: Sequence[tuple[Change, AskedStep]]) -> Iterator[Change]:
    """Two changes at once, of those that need the least memory."""
    least = sorted(tried, key=lambda one: one[1].memory_bytes or 0.0)[:MOST_PAIRED]
    yield from (both for (a, _), (b, _) in combinations(least, 2) if (both := _both(a, b)))


def _faster(
    found: Sequence[tuple[Change, AskedStep, Advice]], remedies: Sequence[tuple[Change, AskedStep, Advice]]
) -> Iterator[Change]:
    """The change that gains most, if it alone does not fit, with each of those that do."""
    best, _, gained = max(found, key=lambda one: one[2].gain)
    if not gained.fits:
        yield from (both for one, *_ in remedies if (both := _both(best, one)))


def _both(a: Change, b: Change) -> Change | None:
    """Both changes at once, unless they change the same field."""
    fields = [{line.partition("=")[0] for line in one.assignments} - {"training.recipe"} for one in (a, b)]
    if fields[0] & fields[1]:
        return None
    code = " and ".join(text for text in (a.code, b.code) if text)
    return Change(f"{a.name} and {b.name}", (*a.assignments, *b.assignments), code, a.alters or b.alters)


def _advice(change: Change, after: AskedStep, before: AskedStep, p: Prediction, on: Platform) -> Advice:
    memory = after.memory_bytes
    return _advised(
        p, name=change.name, code=change.code, alters=change.alters,
        set_line=" ".join(f"--set {shlex.quote(one)}" for one in dict.fromkeys(change.assignments)),
        step_us=p.step_time_us * after.step_us / before.step_us, gain=_rate(after) / _rate(before) - 1,
        had_bytes=before.memory_bytes, memory_bytes=memory,
        fits=None if memory is None else fits(memory, on.spec.gpu.usable_bytes),
    )  # fmt: skip


def _advised(
    p: Prediction, *, gain: float, had_bytes: float | None, memory_bytes: float | None, **stated: Any
) -> Advice:
    """With what follows: whether the gain is sure, and the memory that the change saves."""
    return Advice(
        gain=gain, beyond_interval=gain > p.high_us / p.step_time_us - 1, memory_bytes=memory_bytes,
        saved_bytes=None if memory_bytes is None or had_bytes is None else had_bytes - memory_bytes, **stated,
    )  # fmt: skip


def _rate(asked: AskedStep) -> float:
    """Work per second: samples where the job states them, else steps."""
    return asked.rates.samples_per_s or 1e6 / asked.step_us


def _of_captured(step: CapturedStep, on: Platform) -> Advised:
    step = step.over(on.spec.ranks)
    on = on.with_ranks(step.ranks, "--world of the capture")
    p = predict_captured(step, on)
    found = [_of_rewrite(one, p, on) for one in rewrites_of(step, on.spec.gpu)]
    changes = _best(found)
    if p.fits is False:
        smaller = (_of_rewrite(one, p, on) for one in smaller_batches(step))
        room = [*(one for one in found if one.fits), *islice((one for one in smaller if one.fits), 1)]
        changes = tuple(sorted(room, key=lambda one: -one.gain))
    return Advised(replace(p, notes=(*on.notes, *p.notes)), changes, len(found))


def _of_rewrite(rewrite: Rewrite, p: Prediction, on: Platform) -> Advice:
    made = predict_captured(rewrite.step, on)
    return _advised(
        p, name=rewrite.name, set_line="", code=rewrite.code, alters=rewrite.alters, done=rewrite.done,
        step_us=made.step_time_us, gain=rewrite.work * p.step_time_us / made.step_time_us - 1,
        had_bytes=p.memory.total_bytes if p.memory else None,
        memory_bytes=made.memory.total_bytes if made.memory else None, fits=made.fits,
    )  # fmt: skip
