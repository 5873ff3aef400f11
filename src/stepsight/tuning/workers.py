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
from stepsight.tuning.chunks import Stretches, evaluate_some
from stepsight.tuning.evaluate import evaluate
from stepsight.tuning.ray_cluster import RayCluster
from stepsight.tuning.trial import Row, Trial, failed

Answers = Iterator[tuple[int, Row]]
QUEUED = 2
"""Tasks that a process has at once: the next lies there when one is done."""


class Here:
    """One after the other, in this process."""

    def run(self, document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> Answers:
        for index, trial in enumerate(trials):
            yield index, evaluate(document, trial, where)

    def close(self) -> None:
        """Nothing was opened."""


class Processes:
    """``workers`` processes on this machine, each with a queue of its own."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pools: dict[int, ProcessPoolExecutor] = {}

    def run(self, document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> Answers:
        left = Stretches(len(trials), self.workers)
        flying: dict[Future[list[Row]], tuple[int, ProcessPoolExecutor, range]] = {}

        def hand_out(worker: int) -> None:
            chunk = left.take(worker)
            if chunk:
                pool, future = self._submit(worker, document, [trials[i] for i in chunk], where)
                flying[future] = (worker, pool, chunk)

        for _ in range(QUEUED):
            for worker in range(self.workers):
                hand_out(worker)
        while flying:
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in done:
                worker, pool, chunk = flying.pop(future)
                try:
                    rows = future.result()
                except BrokenProcessPool:
                    self._shut(worker, pool)
                    rows = [_alone(document, trials[i], where) for i in chunk]
                hand_out(worker)
                yield from zip(chunk, rows, strict=True)

    def _submit(
        self, worker: int, document: Mapping[str, Any], trials: Sequence[Trial], where: str
    ) -> tuple[ProcessPoolExecutor, Future[list[Row]]]:
        """Give trials to a worker, a new one where it has died over its last task."""
        if worker not in self._pools:
            self._pools[worker] = _one_process()
        pool = self._pools[worker]
        try:
            return pool, pool.submit(evaluate_some, document, trials, where)
        except BrokenProcessPool:
            self._shut(worker, pool)
            return self._submit(worker, document, trials, where)

    def _shut(self, worker: int, pool: ProcessPoolExecutor) -> None:
        """End a pool; another that has taken its place stays."""
        if self._pools.get(worker) is pool:
            del self._pools[worker]
        pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        for worker, pool in list(self._pools.items()):
            self._shut(worker, pool)


def _alone(document: Mapping[str, Any], trial: Trial, where: str) -> Row:
    """Once more, with a process of its own."""
    with _one_process() as pool:
        try:
            return pool.submit(evaluate_some, document, [trial], where).result()[0]
        except BrokenProcessPool:
            return failed(trial)


def _one_process() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=as_pool_worker, initargs=(os.getpid(),))


Workers = Here | Processes | RayCluster


def workers_of(workers: int = 1, ray: str | None = None) -> Workers:
    """Who a command line asks for."""
    if ray is not None:
        if workers != 1:
            raise InputError("--workers", "is given together with --ray", "give one of the two")
        return RayCluster(ray)
    if workers < 1:
        raise InputError("--workers", f"is {workers}", "give 1 or more")
    return Here() if workers == 1 else Processes(workers)
