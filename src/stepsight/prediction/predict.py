"""Predict a workload or a captured step on a platform: the one call that joins all parts."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from stepsight.capturing.step import CapturedStep, RankMemoryUse, is_step_file, load_step
from stepsight.errors import InputError
from stepsight.platform.conditions import check_axes
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import INTERVAL_SIGMAS, METHOD_SPREAD, Prediction, explain, predict_job
from stepsight.prediction.breakdown import EXPOSED, IDLE, RankSummary, Sensitivity
from stepsight.prediction.embedding import embedding_figures
from stepsight.prediction.language import predict_language
from stepsight.prediction.memory import MemoryLine
from stepsight.prediction.runnable import (
    batch_left_open,
    borrowed,
    check_job,
    check_runnable,
    experts_cross,
    faster_attention,
    language_warnings,
    layout_left_open,
    missing_units,
)
from stepsight.prediction.throughput import job_flops
from stepsight.program.observation import ObservedJob
from stepsight.program.setup import Setup
from stepsight.simulate.price import price
from stepsight.simulate.timeline import run
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import METHOD_SPREAD as DLRM_METHOD_SPREAD
from stepsight.workload.files import Workload, changed, load_workload, parse_workload, resolve, with_recipe
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload
from stepsight.workload.memory import CONTEXT_BYTES

PLATFORM = "platform."
"""The beginning of a changed field's name that is the platform's."""


def predict(
    workload: Workload | CapturedStep | Mapping[str, Any] | str | Path,
    platform: Platform | str | Path,
    *,
    set: Mapping[str, Any] | None = None,
) -> Prediction:
    """The step time of a workload, or of a captured step, on a platform, explained.

    ``workload`` is a loaded workload, the path of a workload file, or a file's content as a dict;
    ``platform`` a loaded platform, its name or its path. A workload that leaves the number of ranks
    open uses all GPUs of the platform. The step is one of the steady state, in which the host may already
    launch the next one while the GPU finishes this one.
    ``set`` changes fields as ``--set`` does, ``{"parallel.zero": 3, "platform.link.gbps": 100}``, of a
    workload and a platform that are given by name, path or dict.

    >>> predict("examples/dlrm.toml", "8xH100-SXM").step_time_us  # doctest: +SKIP
    """
    changes = {key: str(value) for key, value in (set or {}).items()}
    of_platform = [f"{k.removeprefix(PLATFORM)}={v}" for k, v in changes.items() if k.startswith(PLATFORM)]
    of_workload = {k: v for k, v in changes.items() if not k.startswith(PLATFORM)}
    if of_platform and isinstance(platform, Platform):
        raise InputError("set", "the platform is loaded already", "give its name or path, or load it changed")
    on = platform if isinstance(platform, Platform) else load_platform(platform, of_platform)
    given = _loaded(workload, of_workload)
    if on.evidence is None:
        return _predicted(given, on)
    from stepsight.prediction.learn.response import for_job

    here, spread = for_job(given, on)
    made, reach = _predicted(with_recipe(given, on.recipe), here), math.exp(INTERVAL_SIGMAS * spread)
    return replace(made, low_us=made.step_time_us / reach, high_us=made.step_time_us * reach)


def _predicted(given: Workload | CapturedStep, on: Platform) -> Prediction:
    if isinstance(given, CapturedStep):
        given = given.over(on.spec.ranks)
        on = on.with_ranks(given.ranks, "--world of the capture")
        check_job(given.job, on.spec.gpu)
        found = predict_captured(given, on)
        return replace(found, notes=(*on.notes, *found.notes))
    training = resolve(given, on.spec.ranks, on.spec.gpu, on.spec.gpus_per_node)
    on = on.with_ranks(training.ranks, training.sized_by)
    check_runnable(training, on)
    if isinstance(training, LanguageWorkload) and training.eager is None:
        memory = _memory(training, on)
        found = predict_language(training.config, on, memory, training.setup())
        return replace(found, notes=(*_known_before(training.config, on, found), *found.notes))
    device = "cpu" if on.spec.host.synchronous else "cuda"
    job = training.job(device)
    check_axes(on.site, job.groups, f"platform {on.name}")
    dlrm = training if isinstance(training, DlrmWorkload) else None
    spread = DLRM_METHOD_SPREAD if dlrm and device == "cuda" else METHOD_SPREAD
    found = explain(run(price(job, on), on), on, method_spread=spread)
    of_file = dlrm.config.notes if dlrm else ()
    return replace(
        found, workload=training.name, memory=_memory(training, on), setup=training.setup(),
        notes=(*of_file, *missing_units(job, on.spec.gpu), *on.notes, *found.notes),
        embedding=embedding_figures(dlrm.config, dlrm.plan, on) if dlrm else None,
    )  # fmt: skip


def _known_before(c: LanguageConfig, on: Platform, found: Prediction) -> tuple[str, ...]:
    """What a reader should know of a language model's platform, type, layout and attention first."""
    shares = {part: us / found.step_time_us for part, us in found.breakdown_us.items()}
    layout = (
        *experts_cross(c, on),
        *layout_left_open(c, shares.get(EXPOSED, 0.0)),
        *batch_left_open(c, shares.get(IDLE, 0.0)),
    )
    attention = faster_attention(c, on, found)
    return (*language_warnings(c, on.spec.gpu), *on.notes, *layout, *borrowed(c), *attention)


def _loaded(
    workload: Workload | CapturedStep | Mapping[str, Any] | str | Path, changes: Mapping[str, str]
) -> Workload | CapturedStep:
    if isinstance(workload, Mapping):
        name = str(workload.get("name", "workload"))
        return (
            changed(copy.deepcopy(dict(workload)), changes, name)
            if changes
            else parse_workload(workload, name)
        )
    if not isinstance(workload, str | Path | CapturedStep | DlrmWorkload | LanguageWorkload):
        raise InputError(
            "workload", f"must be a name, a path, a dict or a loaded workload, not {workload!r}",
            'give one, as predict("llama3-8b", "8xH100-SXM")',
        )  # fmt: skip
    if isinstance(workload, (str, Path)) and not is_step_file(Path(workload)):
        return load_workload(workload, changes)
    if changes:
        raise InputError(
            "set", "a loaded workload or a captured step has no fields to change", "give its file"
        )
    return load_step(Path(workload)) if isinstance(workload, (str, Path)) else workload


def _memory(workload: Workload, platform: Platform) -> MemoryLine:
    """The fullest rank against what a job can use of its device."""
    ranks = workload.memory().ranks
    fullest = max(range(len(ranks)), key=lambda r: ranks[r].total)
    held = ranks[fullest]
    parts = {
        f.name: float(getattr(held, f.name))
        for f in fields(held)
        if f.name not in ("followed", "reclaimable")
    }
    parts["cached_by_allocator"] = parts.pop("cached")
    parts = {name: platform.learned.memory * value for name, value in parts.items()}
    peaks = (held.peak_active, held.peak_reserved) if held.followed else (None, None)
    return MemoryLine(
        parts, platform.spec.gpu.usable_bytes, fullest, peaks[0], peaks[1], reclaimable_bytes=held.reclaimable
    )


@dataclass(frozen=True, slots=True)
class CapturedOn:
    """A captured step on a platform, as what-if questions change it."""

    step: CapturedStep
    job: ObservedJob
    platform: Platform
    measured_us: float | None = None

    @classmethod
    def of(cls, step: CapturedStep, platform: Platform) -> CapturedOn:
        return cls(step, ObservedJob(step.job), platform)

    def on(self, platform: Platform) -> CapturedOn:
        return replace(self, platform=platform)

    def of_work(self, ratio: float, batch: float) -> CapturedOn:
        """The same step of ``ratio`` times the samples, of ``batch`` times as many on each rank."""
        samples = replace(self.step.samples, count=round(ratio * self.step.samples.count))
        memory = tuple(use.of_batch(batch) for use in self.step.memory)
        return replace(self, step=replace(self.step, samples=samples, memory=memory))

    def predicted(self) -> Prediction:
        return predict_captured(replace(self.step, job=self.job.job), self.platform)


def predict_captured(step: CapturedStep, platform: Platform) -> Prediction:
    """The time of one optimizer step, with the capture's notes."""
    found = predict_job(step.job, platform)
    made = replace(
        found, workload=step.name, setup=_setup(step), notes=(*_notes(step, platform), *found.notes),
        memory=_captured_memory(step.fullest, platform) if step.fullest else None,
    )  # fmt: skip
    return _mean_step(made, step.steps) if step.steps > 1 else made


def _setup(step: CapturedStep) -> Setup:
    """What one step trains, as far as the capture knows."""
    seen = step.samples
    count = seen.count / step.steps
    replicas = (("data", step.ranks),) if step.ranks > 1 and seen.count and not seen.stated else ()
    return Setup(
        samples=count or None, tokens=count * seen.length or None, sequence=seen.length or None,
        parallel=replicas, sample_kind=seen.kind,
    )  # fmt: skip


def _notes(step: CapturedStep, platform: Platform) -> tuple[str, ...]:
    notes = step.all_notes()
    if step.gpu and step.gpu != platform.spec.gpu.name:
        notes = (*notes, f"captured for {step.gpu}: kernels are those the script chose for that GPU")
    return notes


def _captured_memory(use: RankMemoryUse, platform: Platform) -> MemoryLine:
    """What is active at the peak, what else the allocator holds, and the process's context."""
    parts = {name: float(value) for name, value in use.parts_bytes.items()}
    parts["cached_by_allocator"] = max(use.peak_reserved_bytes - sum(parts.values()), 0.0)
    parts["context"] = CONTEXT_BYTES
    parts = {name: platform.learned.memory * value for name, value in parts.items()}
    usable = platform.spec.gpu.usable_bytes
    return MemoryLine(parts, usable, use.rank, use.peak_active_bytes, use.peak_reserved_bytes, use.at)


def _mean_step(made: Prediction, steps: int) -> Prediction:
    """Of several recorded steps the mean one."""
    setup = replace(
        made.setup or Setup(), model_flops=sum(job_flops(made.timeline.priced.job).values()) / steps
    )
    return replace(
        _scaled(made, steps), setup=setup, ranks=tuple(_scaled(r, steps) for r in made.ranks),
        breakdown_us={name: us / steps for name, us in made.breakdown_us.items()},
        sensitivity=tuple(_scaled(s, steps) for s in made.sensitivity),
        notes=(*made.notes, f"the mean of {steps} steps"),
    )  # fmt: skip


_Timed = TypeVar("_Timed", Prediction, RankSummary, Sensitivity)


def _scaled(timed: _Timed, steps: int) -> _Timed:
    """With every time divided by the number of steps."""
    values = {f.name: getattr(timed, f.name) for f in fields(timed) if f.name.endswith("_us")}
    times: Any = {name: us / steps for name, us in values.items() if isinstance(us, float)}
    return replace(timed, **times)
