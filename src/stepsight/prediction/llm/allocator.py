"""What the caching allocator of the first rank holds at the end of a run: what `nvidia-smi` would show.

Blocks that wait for the communication stream are free, but lie in the allocator until it has come by. They
pile up where the host runs ahead of the device, never in a run whose host waits (`slow_runs`), and never
beyond the GPU's memory, where the allocator waits for them and takes them back.
"""

from __future__ import annotations

from stepsight.prediction.llm.compose import Composed, Composer
from stepsight.prediction.llm.slow_runs import Mixture
from stepsight.workload.llm.memory import piled_up_behind_backward, stage_memory, usable_bytes

HOST_AHEAD = 0.25
"""Of a step, the share that a stage may wait for its host while the host is still ahead at its largest
passes: pipelines of two stages of a public sweep that wait less hold piled-up inputs, others do not."""


def reserved_bytes(composer: Composer, runs: Mixture) -> float:
    """The figure with the least expected relative error over the states that a run can be in."""
    needed, usual = needed_bytes(composer), usual_bytes(composer, runs.usual)
    missed = runs.probability * (usual / needed - 1)
    invented = (1 - runs.probability) * (1 - needed / usual)
    return usual if missed <= invented else needed


def needed_bytes(composer: Composer) -> float:
    """What a run whose host waits holds: no free blocks."""
    return stage_memory(composer.c)[0].total


def usual_bytes(composer: Composer, usual: Composed) -> float:
    """With the free blocks of a run that is not slow, as far as there is room for them."""
    c = composer.c
    held, first = stage_memory(c)[0], usual.stages[0]
    free = held.reclaimable
    if first.host_bound_us < HOST_AHEAD * usual.step_us:
        free = max(free, piled_up_behind_backward(c))
    room = usable_bytes(composer.pricer.platform.spec.gpu.memory_gb)
    return max(held.total, min(held.total + free, room))
