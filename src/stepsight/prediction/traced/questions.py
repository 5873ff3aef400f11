"""What-if questions as they are typed: ``link=100``, ``gpu=H100-SXM``, ``no-host``, ``drop=dropout``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from stepsight.errors import InputError
from stepsight.inputs import limit, number, whole
from stepsight.prediction.predict import CapturedOn
from stepsight.prediction.traced import whatif
from stepsight.prediction.traced.anchoring import with_waits_kept
from stepsight.prediction.traced.predict import Basis, TracedStep
from stepsight.program.observation import ObservedJob
from stepsight.records import nearest
from stepsight.trace.step.missing_ranks import without_late_peers

Answer = Callable[[Any, str], Any]
Asked = TypeVar("Asked", TracedStep, CapturedOn)


def _number(text: str, question: str) -> float:
    return number(text, f"--what-if {question}={text}", fix=QUESTIONS[question][0])


def _count(text: str, question: str) -> int:
    return whole(text, f"--what-if {question}={text}", most=limit("RANKS"))


def _changed_job(step: Any, change: Callable[[ObservedJob], ObservedJob]) -> Any:
    """The step with its job changed; nothing was observed of a captured one."""
    if isinstance(step, CapturedOn):
        return replace(step, job=change(ObservedJob(step.job)).job)
    return replace(step, job=change(step.job))


def _ranks(step: TracedStep | CapturedOn) -> int:
    return step.job.ranks if isinstance(step, CapturedOn) else step.job.job.ranks


def _with_ranks(step: TracedStep | CapturedOn, ranks: int) -> TracedStep | CapturedOn:
    """The step on that many ranks; of a traced one, on as many more nodes of its kind as they need."""

    def widened(job: ObservedJob) -> ObservedJob:
        return whatif.with_ranks(job, ranks)

    if isinstance(step, CapturedOn) or ranks == _ranks(step):
        changed: TracedStep | CapturedOn = _changed_job(step, widened)
        return changed
    job = with_waits_kept(step.job, step.own) if step.basis is Basis.ANCHORED else step.job
    platform, notes = step.platform, step.notes
    if ranks > platform.spec.ranks:
        platform = whatif.with_nodes(platform, -(-ranks // platform.spec.gpus_per_node))
        notes = (*notes, f"{ranks} ranks: {platform.spec.nodes} nodes of {platform.spec.gpus_per_node} GPUs")
    return replace(step, job=widened(job), platform=platform, notes=notes)


QUESTIONS: dict[str, tuple[str, Answer]] = {
    "link": (
        "link=GBPS: another link bandwidth between the GPUs of a node, GB/s per direction",
        lambda s, v: s.on(whatif.with_link(s.platform, _number(v, "link"))),
    ),
    "gpu": (
        "gpu=NAME: another GPU, with the links it usually has",
        lambda s, v: s.on(whatif.on_gpu(s.platform, v)),
    ),
    "ranks": (
        "ranks=N: N data-parallel ranks, with the batch per rank unchanged",
        lambda s, v: _with_ranks(s, _count(v, "ranks")),
    ),
    "no-host": (
        "no-host: no host overhead, as with CUDA graphs",
        lambda s, _: _changed_job(s, whatif.without_host),
    ),
    "peers-on-time": (
        "peers-on-time: no rank waits for ranks that have no trace",
        lambda s, _: _changed_job(s, without_late_peers),
    ),
    "drop": (
        "drop=PATTERN: remove the operators whose name matches",
        lambda s, v: _changed_job(s, lambda job: whatif.without_ops(job, v)),
    ),
    "fuse": (
        "fuse=PATTERN: fuse consecutive matching operators into one kernel",
        lambda s, v: _changed_job(s, lambda job: whatif.fused(job, v)),
    ),
    "bucket": (
        "bucket=MB: gradient all_reduces in buckets of this size",
        lambda s, v: _changed_job(s, lambda job: whatif.with_bucket(job, _number(v, "bucket"))),
    ),
    "batch": (
        "batch=FACTOR: multiply the batch by this",
        lambda s, v: _changed_job(s, lambda job: whatif.with_batch(job, _number(v, "batch"))),
    ),
}
"""Question → how it is written and what it says, and the change it makes."""
_WITHOUT_VALUE = ("no-host", "peers-on-time")


def work_ratio(before: Asked, after: Asked, questions: Iterable[str]) -> float:
    """What a step of the changed one does over what it did, in samples: batch= and ranks= change it."""
    factors = [_number(text.partition("=")[2], "batch") for text in questions if text.startswith("batch=")]
    return math.prod(factors) * _ranks(after) / _ranks(before)


def changed(step: Asked, questions: Iterable[str]) -> Asked:
    """The step with every what-if applied, in the order given."""
    for text in questions:
        name, equals, value = text.partition("=")
        if name not in QUESTIONS:
            raise InputError(f"--what-if {text}", "no such question", nearest(name, QUESTIONS))
        if not equals and name not in _WITHOUT_VALUE:
            raise InputError(f"--what-if {text}", "needs a value", QUESTIONS[name][0])
        if name == "peers-on-time" and isinstance(step, CapturedOn):
            raise InputError(f"--what-if {text}", "has no effect on a captured step", "leave it out")
        step = replace(QUESTIONS[name][1](step, value), measured_us=None)
    return step
