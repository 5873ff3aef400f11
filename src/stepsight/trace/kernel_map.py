"""minimal"""

from __future__ import annotations
from stepsight.trace.events import Event
from stepsight.trace.link import Launch, LinkedTrace
from stepsight.workload.program import Kernel


def kernel_of(linked: LinkedTrace, launch: Launch, event: Event, stream: str) -> Kernel:
    return Kernel(
        "other",
        (("flops", 0.0), ("read_bytes", 1e3), ("write_bytes", 1e3)),
        "fp32",
        stream,
        event.name[:60],
        None,
        event.dur,
    )
