"""One way to time a call on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any


class Stopwatch:
    """Times calls in µs: by the clock on a CPU, by CUDA events on a GPU.

    With ``own_time`` a CPU is read by the thread's own processor time: what other processes take
    away in between does not count. Only for calls that neither wait nor use other threads.
    """

    def __init__(self, device: str, *, own_time: bool = False) -> None:
        self._cuda = device.startswith("cuda")
        self._now: Callable[[], int] = thread_time_ns if own_time else perf_counter_ns
        if self._cuda:
            import torch

            self._torch = torch

    def synchronize(self) -> None:
        """Wait until everything queued on the device has run."""
        if self._cuda:
            self._torch.cuda.synchronize()

    def time_us(self, call: Callable[[], Any]) -> float:
        """How long one call takes on the device; its result is dropped after the clock has stopped."""
        return self.timed(call)[0]

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """How long one call takes on the device, and its result."""
        if self._cuda:
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            result = call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e3, result
        begin = self._now()
        result = call()
        taken = self._now() - begin
        return taken / 1e3, result
