"""A prediction as JSON: the fields that scripts rely on."""

from __future__ import annotations

from typing import Any

import msgspec

from stepsight.prediction.answer import MemoryLine, Prediction


def document(prediction: Prediction) -> dict[str, Any]:
    """Plain values, times in µs, ready for JSON."""
    result: dict[str, Any] = {
        "step_time_us": prediction.step_us,
        "low_us": prediction.low_us,
        "high_us": prediction.high_us,
        "workload": prediction.workload,
        "platform": prediction.platform,
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
    if prediction.language:
        result["language"] = msgspec.to_builtins(prediction.language)
    if prediction.memory:
        result["memory"] = memory_document(prediction.memory)
    if prediction.basis:
        result["basis"] = prediction.basis
    if prediction.measured_us is not None:
        result["measured_us"] = prediction.measured_us
        result["error"] = prediction.step_us / prediction.measured_us - 1
    return result


def memory_document(memory: MemoryLine) -> dict[str, Any]:
    """Bytes by part, the total, and by how much it does not fit."""
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
        "capacity_bytes": memory.capacity_bytes,
        "excess_bytes": memory.excess_bytes,
        "fits": memory.excess_bytes == 0,
    }
