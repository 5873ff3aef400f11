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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepsight.errors import InputError, StepsightError
from stepsight.processes import as_pool_worker
from stepsight.tuning.evaluate import evaluate
from stepsight.tuning.trial import Journal, Row, Trial, failed

ROUNDS = 6
"""Tasks a worker gets of a run: few, so that handing out costs little, but enough to even them out."""
MOST_TOGETHER = 32
"""Trials in one task at most: what is lost when its worker dies."""


class Stretches:
    """Trials not handed out yet, a stretch of neighbours for each worker.

    Neighbours are identical, so a worker that stays in its stretch prices what they share once, and no other
    worker does. One that is done helps where most is left, from that stretch's end. The last tasks are
    short, so that all workers end at about the same time.
    """

    def __init__(self, count: int, workers: int) -> None:
        self._left = [range(count * i // workers, count * (i + 1) // workers) for i in range(workers)]
        self._size = max(1, min(MOST_TOGETHER, -(-count // (ROUNDS * workers))))

    def __bool__(self) -> bool:
        return any(self._left)

    def take(self, worker: int) -> range:
        """The next trials of a worker; empty where none are left."""
        total = sum(map(len, self._left))
        take = max(1, min(self._size, total // (2 * len(self._left))))
        mine = self._left[worker]
        if mine:
            self._left[worker] = mine[take:]
            return mine[:take]
        longest = max(range(len(self._left)), key=lambda i: len(self._left[i]))
        other = self._left[longest]
        self._left[longest] = other[: max(0, len(other) - take)]
        return other[max(0, len(other) - take) :]


def evaluate_some(document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> list[Row]:
    """The answers to a chunk."""
    return [evaluate(document, trial, where) for trial in trials]


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


CONNECT_S = 5.0
"""How long a Ray address may take to answer."""
FIRST_ACTOR_S = 180.0
"""How long a cluster may take until one of its CPUs is free and stepsight is loaded there."""


class RayCluster:
    """The CPUs of a cluster; stepsight must be installed on its nodes.

    Actors begin to load stepsight when the cluster is opened, and get trials once they are there: one that
    finds no free CPU holds up nobody.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise StepsightError("--ray needs the package ray; pip install ray") from None
        self._ray = ray
        check_reachable(address)
        try:
            ray.init(address=address, ignore_reinit_error=True, logging_level="ERROR", log_to_driver=False)
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InputError(
                f"--ray {address}",
                f"cannot be reached: {first}",
                "start a cluster (ray start --head), or fix the address",
            ) from None
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._actors: dict[int, Any] = {}
        self._starting: dict[Any, int] = {}
        self._idle: list[int] = []
        for worker in range(self.workers):
            self._start(worker)

    def _start(self, worker: int) -> None:
        """An actor, which is idle as soon as it says that it is there."""
        self._actors[worker] = self._ray.remote(num_cpus=1)(Evaluator).remote()
        self._starting[self._actors[worker].there.remote()] = worker

    def run(
        self, document: Mapping[str, Any], trials: Sequence[Trial], where: str
    ) -> Iterator[tuple[int, Row]]:
        held = self._ray.put(dict(document))
        left = Stretches(len(trials), self.workers)
        flying: dict[Any, tuple[int, range]] = {}
        while left or flying:
            while left and self._idle:
                worker = self._idle.pop()
                chunk = left.take(worker)
                task = self._actors[worker].some.remote(held, [trials[i] for i in chunk], where)
                flying[task] = (worker, chunk)
            done = self._next([*flying, *(self._starting if left else ())], bool(flying))
            if done in self._starting:
                self._welcome(done)
                continue
            worker, chunk = flying.pop(done)
            rows = self._result(done)
            if rows is None:
                self._start(worker)
                rows = [self._alone(held, trials[i], where) for i in chunk]
            else:
                self._idle.append(worker)
            yield from zip(chunk, rows, strict=True)

    def _next(self, refs: list[Any], working: bool) -> Any:
        """The first of these that is done."""
        done, _ = self._ray.wait(refs, num_returns=1, timeout=None if working else FIRST_ACTOR_S)
        if not done:
            raise InputError(
                f"--ray {self.address}", f"no CPU of the cluster was free for {FIRST_ACTOR_S:.0f} s",
                "wait for other jobs to end, or use --workers",
            )  # fmt: skip
        return done[0]

    def _welcome(self, ref: Any) -> None:
        """An actor that has come up takes trials; one that cannot says why."""
        worker = self._starting.pop(ref)
        try:
            self._ray.get(ref)
        except Exception as error:
            words = str(error).strip().splitlines()[-1]
            raise InputError(
                f"--ray {self.address}", f"a worker does not start: {words}",
                "install stepsight, in this version, on every node",
            ) from None  # fmt: skip
        self._idle.append(worker)

    def _result(self, ref: Any) -> list[Row] | None:
        """The rows; ``None`` where their worker died."""
        try:
            return list(self._ray.get(ref))
        except self._ray.exceptions.RayActorError:
            return None

    def _alone(self, held: Any, trial: Trial, where: str) -> Row:
        """Once more, with an actor of its own."""
        actor = self._ray.remote(num_cpus=0)(Evaluator).remote()
        rows = self._result(actor.some.remote(held, [trial], where))
        self._ray.kill(actor)
        return rows[0] if rows else failed(trial)

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.shutdown()


class Evaluator:
    """A process of the cluster: what it has priced once serves its later trials."""

    def there(self) -> bool:
        return True

    def some(self, document: Mapping[str, Any], trials: Sequence[Trial], where: str) -> list[Row]:
        return evaluate_some(document, trials, where)


def check_reachable(address: str) -> None:
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


Ask = Callable[[Sequence[Trial]], Answers]
"""Gives each trial's place and row: those that the journal knows first, then the others as they come."""


@contextmanager
def answering(
    document: Mapping[str, Any], where: str, *, workers: int = 1, ray: str | None = None,
    resume: str | Path | None = None,
) -> Iterator[Ask]:  # fmt: skip
    """Whom to ask about trials of one document; every new answer is kept in the journal ``resume``."""
    journal, pool = Journal(Path(resume) if resume else None, document, where), workers_of(workers, ray)

    def ask(trials: Sequence[Trial]) -> Answers:
        known = {i: row for i, trial in enumerate(trials) if (row := journal.get(trial)) is not None}
        yield from known.items()
        left = [i for i in range(len(trials)) if i not in known]
        for position, row in pool.run(document, [trials[i] for i in left], where):
            journal.add(trials[left[position]], row)
            yield left[position], row

    try:
        yield ask
    finally:
        pool.close()
