"""Trials on a Ray cluster that already runs: one actor a CPU, which keeps what it has priced."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepsight.errors import InputError, StepsightError
from stepsight.tuning.chunks import Stretches, evaluate_some
from stepsight.tuning.trial import Row, Trial, failed

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
            raise StepsightError("--ray needs the package ray; pip install 'stepsight[ray]'") from None
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
