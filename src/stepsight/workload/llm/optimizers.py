"""Optimizers of language models."""

from __future__ import annotations

from stepsight.workload.operators.optimizers import STATE_PER_PARAMETER

UPDATES = {**STATE_PER_PARAMETER, "lamb": 2}
"""Optimizers, and the fp32 tensors that each keeps for a parameter."""
