"""Who evaluates trials: this process, processes of this machine, or a Ray cluster. The rows are the same.

Trials are independent. A worker that dies takes its trial with it: that trial is run once more by itself,
and is reported as failed when it dies again.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from stepsight.errors import InputError
from stepsight.processes import as_pool_worker
from stepsight.tune.chunks import chunks, evaluate_some
from stepsight.tune.evaluate import evaluate
from stepsight.tune.ray_cluster import RayCluster
from stepsight.tune.trial import Row, Trial, failed

Answers = Iterator[tuple[int, Row]]


class Here:
    """One after the other, in this process."""

    def run(self, document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> Answers:
        for index, trial in enumerate(trials):
            yield index, evaluate(document, trial, where)

    def close(self) -> None:
        """Nothing was opened."""


class Processes:
    """``workers`` processes on this machine."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def run(self, document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> Answers:
        waiting, flying = chunks(len(trials), self.workers)[::-1], dict[Future[list[Row]], range]()
        while waiting or flying:
            while waiting and len(flying) < 2 * self.workers:
                chunk = waiting.pop()
                some = [trials[i] for i in chunk]
                flying[self._open().submit(evaluate_some, document, some, where)] = chunk
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            broken: list[range] = []
            for future in done:
                chunk = flying.pop(future)
                try:
                    yield from zip(chunk, future.result(), strict=True)
                except BrokenProcessPool:
                    broken.append(chunk)
            if broken:
                suspects = sorted(i for chunk in (*broken, *flying.values()) for i in chunk)
                flying.clear()
                self._shut()
                yield from ((i, self._alone(document, trials[i], where)) for i in suspects)

    def _alone(self, document: Mapping[str, Any], trial: Trial, where: str) -> Row:
        """Once more, with a process of its own."""
        with _pool(1) as pool:
            try:
                return pool.submit(evaluate_some, document, [trial], where).result()[0]
            except BrokenProcessPool:
                return failed(trial)

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = _pool(self.workers)
        return self._pool

    def _shut(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def close(self) -> None:
        self._shut()


def _pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=as_pool_worker, initargs=(os.getpid(),)
    )


Workers = Here | Processes | RayCluster


def workers_of(workers: int = 1, ray: str | None = None) -> Workers:
    """Who a command line asks for."""
    if ray is not None:
        if workers != 1:
            raise InputError("--workers", "is given beside --ray", "give one of the two")
        return RayCluster(ray)
    if workers < 1:
        raise InputError("--workers", f"is {workers}", "give 1 or more")
    return Here() if workers == 1 else Processes(workers)
