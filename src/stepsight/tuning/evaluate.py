"""A trial's answer: legal or not, how sure to fit, how long, where the time goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from stepsight.capturing.step import CapturedStep, load_step
from stepsight.documents import files_named
from stepsight.errors import StepsightError
from stepsight.platform.load import Platform, load_platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.language import LanguageStep, parts_us, walk_language
from stepsight.prediction.memory import fit_probability
from stepsight.prediction.predict import predict
from stepsight.prediction.runnable import check_runnable
from stepsight.prediction.throughput import step_joules, throughput
from stepsight.records import override
from stepsight.tables.sharders import SEARCHED
from stepsight.tuning.trial import ILLEGAL, TOO_LARGE, Row, Setting, Trial
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.files import Workload, parse_workload, resolve, with_recipe
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.workload import LanguageWorkload

CAPTURED = "captured"
"""The kind of a document that only names the file of a captured step."""


def with_settings(document: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The document with settings put in; ``None`` takes a field out."""
    changed = override(document, {k: _text(v) for k, v in settings.items() if v is not None}, where)
    for path in (k for k, v in settings.items() if v is None):
        *sections, name = path.split(".")
        table: Any = changed
        for section in sections:
            table = table.get(section, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict):
            table.pop(name, None)
    return changed


def _text(value: object) -> str:
    """A value as TOML text; lists and tables are typed as such."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not value.startswith(("[", "{")):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def stamp(path: str) -> tuple[tuple[str, int, int], ...]:
    """When the file, or the files of the folder, of that name were written; empty where there is none."""
    files = files_named(path, Path()) if path else []
    return tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files)


def platform_of(name: str, overrides: tuple[str, ...]) -> Platform:
    """Platforms are loaded once a process: their models remember what they were asked."""
    return _loaded(name, overrides, stamp(name))


@lru_cache(maxsize=16)
def _loaded(name: str, overrides: tuple[str, ...], written: object) -> Platform:
    return load_platform(name, overrides)


def evaluate(document: Mapping[str, Any], trial: Trial, where: str, platform: Platform | None = None) -> Row:
    """The answer; whatever the workload or the platform refuses is a row with its reason.

    ``platform`` is the loaded one where the trial's name alone does not say all of it.
    """
    try:
        if platform is None:
            platform = platform_of(trial.platform, trial.overrides)
        if document.get("kind") == CAPTURED:
            return _captured(str(document["file"]), trial, platform)
        row, workload = _sized(document, trial, where, platform)
    except StepsightError as error:
        return Row(trial.settings, trial.platform, ILLEGAL, reason=str(error))
    if not row.priced:
        return row
    try:
        timed = replace(row, **_timed(workload, platform, trial.intervals))
    except StepsightError as error:
        return replace(row, status=ILLEGAL, reason=str(error))
    return costed(timed, trial, platform)


def memory_row(document: Mapping[str, Any], trial: Trial, where: str) -> Row:
    """A trial's row without its time: whether the workload can be, and how sure it is to fit."""
    try:
        return _sized(document, trial, where, platform_of(trial.platform, trial.overrides))[0]
    except StepsightError as error:
        return Row(trial.settings, trial.platform, ILLEGAL, reason=str(error))


def _sized(document: Mapping[str, Any], trial: Trial, where: str, platform: Platform) -> tuple[Row, Workload]:
    workload = workload_of(document, trial.settings, where, platform)
    check_runnable(workload, platform.with_ranks(workload.ranks, workload.sized_by))
    peak, usable = platform.learned.memory * workload.memory().peak_bytes, platform.spec.gpu.usable_bytes
    row = Row(
        trial.settings, trial.platform, ranks=workload.ranks, memory_gb=peak / 1e9,
        usable_gb=usable / 1e9, fit=fit_probability(peak, usable), framework=workload.setup().framework,
        chosen=_chosen(workload),
    )  # fmt: skip
    if row.fit < trial.least_fit:
        over = f"needs {peak / 1e9:.1f} GB of {usable / 1e9:.1f} GB usable"
        row = replace(row, status=TOO_LARGE, reason=over)
    return row, workload


def _chosen(workload: Workload) -> dict[str, Setting]:
    """What a description leaves open and the GPU's memory decides."""
    if not isinstance(workload, LanguageWorkload):
        return {}
    c = workload.config
    found: dict[str, Setting] = {
        "parallel.micro_batch": c.micro_batch,
        "training.recompute": c.training.recompute,
    }
    return {path: value for path, value in found.items() if path.partition(".")[2] in c.left_open}


def workload_of(
    document: Mapping[str, Any], settings: Mapping[str, Any], where: str, platform: Platform
) -> Workload:
    """The document with settings put in; its tables by the plan that is searched for, where a trial asks."""
    searched = settings.get("parallel.sharding") == SEARCHED
    settings = {k: None if searched and k == "parallel.sharding" else v for k, v in settings.items()}
    given = parse_workload(with_settings(document, settings, where), where)
    workload = resolve(
        with_recipe(given, platform.recipe), platform.spec.ranks, platform.spec.gpu,
        platform.spec.gpus_per_node,
    )  # fmt: skip
    if not searched:
        return workload
    from stepsight.sharding.choice import choose

    assert isinstance(workload, DlrmWorkload)
    return workload.with_plan(choose(workload, platform).winner.plan)


def peak_bytes(
    document: Mapping[str, Any], settings: Mapping[str, Any], where: str, platform: Platform
) -> float | None:
    """What the fullest rank needs; None where the workload refuses the settings. There may be more ranks
    than the platform has."""
    try:
        return platform.learned.memory * workload_of(document, settings, where, platform).memory().peak_bytes
    except StepsightError:
        return None


def _captured(path: str, trial: Trial, platform: Platform) -> Row:
    """A captured step: only its platform can vary, and how many samples it takes in is not known."""
    answer = predict(_captured_step(path, stamp(path)), platform)
    held = answer.memory
    row = Row(
        trial.settings, trial.platform, ranks=len(answer.ranks), step_time_us=answer.step_time_us,
        low_us=answer.low_us, high_us=answer.high_us, mfu=answer.throughput.mfu or 0.0,
        shares=_predicted_shares(answer), fit=1.0, energy_j=answer.energy.step_j if answer.energy else None,
    )  # fmt: skip
    if held is not None:
        row = replace(
            row, memory_gb=held.total_bytes / 1e9, usable_gb=held.usable_bytes / 1e9,
            fit=held.fit_probability,
        )  # fmt: skip
    return costed(row, trial, platform)


def costed(row: Row, trial: Trial, platform: Platform) -> Row:
    """With the cost of a step, where a price is known: the caller's, else the platform's."""
    price = trial.price_per_gpu_hour or platform.spec.price_per_gpu_hour
    return row if price is None else replace(row, cost_per_step=price * row.ranks * row.step_time_us / 3.6e9)


@lru_cache(maxsize=4)
def _captured_step(path: str, written: object) -> CapturedStep:
    """The step in a file, read once a process."""
    return load_step(path)


def _timed(workload: Workload, platform: Platform, intervals: bool) -> dict[str, Any]:
    learned = intervals and platform.evidence is not None
    if isinstance(workload, LanguageWorkload) and workload.eager is None and not learned:
        return _language(workload.config, platform, intervals)
    answer = predict(workload, platform)
    rates = answer.throughput
    return {
        "step_time_us": answer.step_time_us, "low_us": answer.low_us, "high_us": answer.high_us,
        "samples_per_s": rates.samples_per_s or 0.0, "tokens_per_s": rates.tokens_per_s or 0.0,
        "mfu": rates.mfu or 0.0, "shares": _predicted_shares(answer),
        "energy_j": answer.energy.step_j if answer.energy else None,
    }  # fmt: skip


def _predicted_shares(answer: Prediction) -> dict[str, float]:
    return {name: us / answer.step_time_us for name, us in answer.breakdown_us.items()}


def _language(c: LanguageConfig, platform: Platform, intervals: bool) -> dict[str, Any]:
    """A row that is shown states the walk of `predict` with its interval; others the walk by blocks."""
    step = LanguageStep(c, platform)
    step_us = low = high = step.step_us()
    if intervals:
        timeline, found = walk_language(c, platform), step.answer()
        step_us = timeline.step_us
        low, high = (step_us / found.step_us * us for us in (found.low_us, found.high_us))
        shares = {name: us / step_us for name, us in parts_us(timeline).items()}
    else:
        shares = step.shares(step_us)
    rates = throughput(None, c.ranks, step_us, LanguageWorkload(c).setup(), platform.spec.gpu)
    return {
        "step_time_us": step_us, "low_us": low, "high_us": high,
        "samples_per_s": rates.samples_per_s or 0.0, "tokens_per_s": rates.tokens_per_s or 0.0,
        "mfu": rates.mfu or 0.0, "shares": shares,
        "energy_j": step_joules(step.dynamic_j, c.ranks, step_us, platform.spec.gpu),
    }  # fmt: skip
