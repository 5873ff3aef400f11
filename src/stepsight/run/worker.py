"""A rank as a process of its own: reads tasks from stdin, answers on stdout.

Started by `stepsight.run.ranks`. A task is a function and its arguments; it is called with
the `Rank` first. Frames are pickles with a length before them. The process ends when its
stdin does, so that it never outlives whoever started it. Its memory is kept by the C library, mapped before
the first step, in huge pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import queue
import struct
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Any

from stepsight.errors import StepsightError
from stepsight.processes import end_with_parent

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Rank:
    """Who this process is. ``device`` is cpu or cuda:<i>; ``cores`` is what it is pinned to."""

    rank: int
    ranks: int
    device: str
    cores: tuple[int, ...] = ()
    address: str = "127.0.0.1"
    port: int = 0
    timeout_s: float = 120.0


def write_frame(pipe: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> Any:
    """The next value; EOFError where the other end is gone."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    size = _LENGTH.unpack(head)[0]
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def _follow(pipe: IO[bytes], tasks: queue.Queue[Any]) -> None:
    """Queues tasks; leaves at once when the starter is gone, whatever the rank is doing."""
    while True:
        try:
            tasks.put(read_frame(pipe))
        except EOFError:
            os._exit(1)
        except Exception as error:  # a task that cannot be unpickled here
            tasks.put(error)


_KEEP = ((-1, -1), (-2, 64 << 20), (-4, 0), (-8, 1))
"""mallopt(3): never trim the heap, grow it by 64 MB at a time, never map a tensor on its own, and one heap
for all threads (the others' heaps are unmapped whenever they are empty)."""
MAPPED_BYTES = 512 << 20
"""What a rank maps before it starts: more than the buffers of the steps that one core can train."""


def keep_memory() -> None:
    """Tell the C library to reuse freed memory instead of returning it (nothing happens elsewhere)."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _KEEP:
            mallopt(parameter, value)


def machine_memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def map_for_steps(ranks: int, device: str) -> None:
    """Map what the buffers of a step need, unless this machine has little memory for this many ranks."""
    if not device.startswith("cuda"):
        map_memory(min(MAPPED_BYTES, machine_memory_bytes() // (8 * ranks)), device)


def map_memory(size_bytes: int, device: str) -> None:
    """Use so much memory once and give it back: what is allocated next finds its pages in place.

    A training loop reuses the buffers of its last step; a first touch costs about a µs a page.
    """
    import torch

    torch.ones(size_bytes, dtype=torch.int8, device=device)


_HUGE_PAGES = "glibc.malloc.hugetlb"


def with_huge_pages(tunables: str) -> str:
    """The C library's tunables with its heap in huge pages, unless they already say something of it.

    In pages of 4 kB the tables' rows miss the TLB, and where the pages lie decides how they share the
    caches: a model built anew by the same processes took 8 % more or less (standard deviation), in
    huge pages 4 %, and its lookups 13 % less time (two DLRMs, torch 2.13, AMD EPYC under KVM).
    """
    if _HUGE_PAGES in tunables:
        return tunables
    return ":".join(filter(None, (tunables, f"{_HUGE_PAGES}=1")))


def _join(rank: Rank) -> None:
    keep_memory()
    import torch
    import torch.distributed as dist

    keep_memory()
    if rank.cores:
        os.sched_setaffinity(0, rank.cores)
        torch.set_num_threads(len(rank.cores))
    if rank.device.startswith("cuda"):
        torch.cuda.set_device(rank.device)
    else:
        # Denormal numbers are up to a hundred times slower: a step's time should not hang on its values.
        torch.set_flush_denormal(True)
        map_for_steps(rank.ranks, rank.device)
    if rank.ranks > 1:
        dist.init_process_group(
            "nccl" if rank.device.startswith("cuda") else "gloo",
            init_method=f"tcp://{rank.address}:{rank.port}",
            rank=rank.rank,
            world_size=rank.ranks,
            timeout=timedelta(seconds=rank.timeout_s),
        )


def main() -> None:
    """Serve tasks until stdin ends."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    rank: Rank = read_frame(sys.stdin.buffer)
    tasks: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_follow, args=(sys.stdin.buffer, tasks), daemon=True).start()
    try:
        _join(rank)
        write_frame(answers, ("ready", None))
        while True:
            task = tasks.get()
            if isinstance(task, Exception):
                raise task
            function, arguments = task
            write_frame(answers, ("result", function(rank, *arguments)))
    except StepsightError as error:
        write_frame(answers, ("input", str(error)))
    except BaseException as error:
        write_frame(answers, ("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


if __name__ == "__main__":
    main()
