"""A prediction as JSON: the fields that scripts rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepsight.prediction.memory import MemoryLine

if TYPE_CHECKING:
    from stepsight.prediction.answer import Prediction


def document(prediction: Prediction) -> dict[str, Any]:
    """Plain values, times in µs, ready for JSON."""
    result: dict[str, Any] = {
        "step_time_us": prediction.step_us,
        "low_us": prediction.low_us,
        "high_us": prediction.high_us,
        "workload": prediction.workload,
        "platform": prediction.platform,
        "assumed": _assumed(prediction),
        "throughput": msgspec.to_builtins(prediction.throughput),
        "ranks": [msgspec.to_builtins(rank) for rank in prediction.ranks],
        "breakdown_us": dict(prediction.breakdown_us),
        "gpu_active_us": prediction.gpu_active_us,
        "exposed_communication_us": prediction.exposed_communication_us,
        "exposed_communication_share": prediction.exposed_communication_us / (prediction.step_us or 1.0),
        "imbalance": prediction.imbalance,
        "naive_us": prediction.naive_us,
        "sensitivity": [msgspec.to_builtins(s) for s in prediction.sensitivities],
        "coverage": msgspec.to_builtins(prediction.coverage),
        "notes": list(prediction.notes),
    }
    if prediction.energy is not None:
        result["energy"] = msgspec.to_builtins(prediction.energy)
    if prediction.language:
        result["language"] = msgspec.to_builtins(prediction.language)
    if prediction.memory:
        result["memory"] = {
            **memory_document(prediction.memory),
            "what_would_help": list(prediction.what_would_help),
        }
    if prediction.basis:
        result["basis"] = prediction.basis
    if prediction.origin is not None:
        result["traced_us"] = prediction.origin.step_us
        result["traced_platform"] = prediction.origin.platform
        if prediction.origin.timed_by is not None:
            result["timed_by"] = msgspec.to_builtins(prediction.origin.timed_by)
    if prediction.measured_us is not None:
        result["measured_us"] = prediction.measured_us
        result["error"] = prediction.step_us / prediction.measured_us - 1
    return result


def _assumed(prediction: Prediction) -> dict[str, Any]:
    """What the job is, as its description states or implies it; `Setup` explains the fields."""
    setup = prediction.setup
    stated: dict[str, Any] = {"ranks": len(prediction.ranks), "gpus": prediction.gpus}
    if setup is None:
        return stated
    named = {"batch": setup.samples, "tokens": setup.tokens, "sequence": setup.sequence}
    if setup.samples is not None:
        named["batch_per_replica"] = setup.samples / setup.replicas
    stated |= {name: value for name, value in named.items() if value is not None}
    if setup.default_batch:
        stated["default_batch"] = True
    return {
        **stated,
        "precision": setup.precision,
        "parallel": dict(setup.parallel),
        "details": list(setup.details),
        **({"framework": setup.framework} if setup.framework else {}),
        **({"recipe": setup.recipe, "differs": list(setup.differs)} if setup.recipe else {}),
    }


def memory_document(memory: MemoryLine) -> dict[str, Any]:
    """Bytes by part, the total against what is usable, whether that fits and how likely."""
    followed = {
        name: value
        for name in ("peak_active_bytes", "peak_reserved_bytes")
        if (value := getattr(memory, name)) is not None
    }
    return {
        "rank": memory.rank,
        **followed,
        "parts_bytes": dict(memory.parts_bytes),
        "total_bytes": memory.total_bytes,
        "reclaimable_bytes": memory.reclaimable_bytes,
        "usable_bytes": memory.usable_bytes,
        "excess_bytes": memory.excess_bytes,
        "fits": memory.fits,
        "fit_probability": memory.fit_probability,
    }
