"""Who evaluates trials: this process, processes of this machine, or a Ray cluster. The rows are the same.

Trials are independent. A worker that dies takes its trial with it: that trial is run once more by itself,
and is reported as failed when it dies again.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from stepsight.errors import InputError, StepsightError
from stepsight.processes import as_pool_worker
from stepsight.tune.evaluate import evaluate
from stepsight.tune.trial import FAILED, Row, Trial

Answers = Iterator[tuple[int, Row]]
CONNECT_S = 5.0
"""How long a Ray address may take to answer."""
ROUNDS = 6
"""Tasks a worker gets of a run: few, so that handing out costs little, but enough to even them out."""
MOST_TOGETHER = 32
"""Trials in one task at most: what is lost when its worker dies."""


def chunks(count: int, workers: int) -> list[range]:
    """Neighbouring trials together: they are alike, so that a worker prices their kernels once.

    The last tasks are short, so that all workers end at about the same time.
    """
    size = max(1, min(MOST_TOGETHER, -(-count // (ROUNDS * workers))))
    found, at = [], 0
    while at < count:
        take = max(1, min(size, (count - at) // (2 * workers) or 1))
        found.append(range(at, at + take))
        at += take
    return found


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
                flying[self._open().submit(_evaluate_some, document, some, where)] = chunk
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
                return pool.submit(evaluate, document, trial, where).result()
            except BrokenProcessPool:
                return Row(trial.settings, trial.platform, FAILED, reason="its worker died, twice")

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


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes where nobody listens."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S):
            return
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--ray {address}", f"cannot be reached: {error}", "start a cluster (ray start --head)"
        ) from None


class RayCluster:
    """The workers of a Ray cluster that already runs; stepsight must be installed on its nodes."""

    def __init__(self, address: str) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise StepsightError("--ray needs the package ray; pip install 'stepsight[ray]'") from None
        self._ray = ray
        _check_reachable(address)
        try:
            ray.init(address=address, ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InputError(
                f"--ray {address}",
                f"cannot be reached: {first}",
                "start a cluster (ray start --head), or fix the address",
            ) from None
        self._task = ray.remote(max_retries=1)(_evaluate_some)

    def run(self, document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> Answers:
        held = self._ray.put(dict(document))
        workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        tasks = {
            self._task.remote(held, [trials[i] for i in chunk], where): chunk
            for chunk in chunks(len(trials), workers)
        }
        while tasks:
            done, _ = self._ray.wait(list(tasks), num_returns=1)
            for task in done:
                chunk = tasks.pop(task)
                yield from zip(chunk, self._rows(task, held, [trials[i] for i in chunk], where), strict=True)

    def _rows(self, task: Any, held: Any, trials: Sequence[Trial], where: str) -> list[Row]:
        """A chunk's rows; where its worker died, each of its trials once more by itself."""
        lost = (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError)
        try:
            return list(self._ray.get(task))
        except lost:
            rows = []
            for trial in trials:
                try:
                    rows += self._ray.get(self._task.options(max_retries=0).remote(held, [trial], where))
                except lost:
                    rows.append(Row(trial.settings, trial.platform, FAILED, reason="its worker died, twice"))
            return rows

    def close(self) -> None:
        self._ray.shutdown()


def _evaluate_some(document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> list[Row]:
    return [evaluate(document, trial, where) for trial in trials]


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
