"""Which ranks do something of their own, and a process for each of them.

Rank 0 is captured first; it shows the process groups. The last rank is compared with it, and so is the last
member of each of rank 0's groups. Where a member differs, every member of that group is captured (pipeline
stages); ranks that were not captured do what the captured rank in their place does.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path

import msgspec

from stepsight.capturing.program import Family, families, groups_of
from stepsight.capturing.request import RECORD, Answer, Request
from stepsight.capturing.step import CapturedStep, Samples, decode_program
from stepsight.errors import InputError, ScriptFailedError, StepsightError
from stepsight.processes import end, end_group
from stepsight.program.job import Group, Job, RankProgram
from stepsight.terminal import counted

_STANDARD_ERROR = 2
"""What scripts print goes where progress goes, so that --json stays alone on standard output."""
MOST_RANKS = 16
"""No more ranks than this are captured unless asked for by name."""


@dataclass(slots=True)
class Capturing:
    """Captures ranks of one job, each in a process of its own; answers are kept."""

    request: Request
    progress: Callable[[str], None] = lambda text: None
    answers: dict[int, Answer] = field(default_factory=dict)
    batch: int = 0
    """Samples per step of the whole job, where the user states them."""

    def rank(self, rank: int) -> Answer:
        if rank not in self.answers:
            self.answers[rank] = self._with_needs(rank, ())
        return self.answers[rank]

    def _with_needs(self, rank: int, waiting: tuple[int, ...]) -> Answer:
        """Capture a rank, in turns with those that it waits for, until it has heard all it waits for."""
        shown = -1
        while True:
            self.progress(f"capturing rank {rank} of {self.request.world}")
            answer = _captured_in_process(self.request, rank)
            if answer.stage != "needs" or answer.needs in waiting:
                return answer
            other = self._with_needs(answer.needs, (*waiting, rank))
            if other.stage == "captured":
                self.answers[answer.needs] = other
            now = len(list(Path(self.request.exchange).iterdir()))
            if now == shown:
                raise StepsightError(f"ranks {rank} and {answer.needs} wait for each other's values")
            shown = now

    def step(self, name: str, ranks: Sequence[int] | None = None) -> CapturedStep:
        """The whole job. ``ranks`` names those to capture; None finds them."""
        with tempfile.TemporaryDirectory(prefix="stepsight-exchange-") as folder:
            self.request = msgspec.structs.replace(self.request, exchange=folder)
            return self._captured(name, ranks)

    def _captured(self, name: str, ranks: Sequence[int] | None) -> CapturedStep:
        first = self.rank(0 if ranks is None or not ranks else ranks[0])
        world = self.request.world
        found = families(first.groups, world)
        if ranks is None:
            self._find_distinct(found)
        else:
            for rank in ranks:
                self.rank(rank)
        return self._assembled(name, found)

    def _find_distinct(self, found: Sequence[Family]) -> None:
        world = self.request.world
        if world == 1:
            return
        base = _hash(self.rank(0))
        self.rank(world - 1)
        for family in found:
            group = family.of(0)
            if group is None or len(group) < 2 or len(self.answers) >= MOST_RANKS:
                continue
            if _hash(self.rank(group[-1])) != base or _talks(self.rank(0), family):
                for member in group[1:-1]:
                    if len(self.answers) < MOST_RANKS:
                        self.rank(member)

    def _assembled(self, name: str, found: Sequence[Family]) -> CapturedStep:
        world = self.request.world
        programs: list[RankProgram] = []
        index: dict[str, int] = {}
        program_of: dict[int, int] = {}
        for rank, answer in sorted(self.answers.items()):
            if answer.program is None:
                raise StepsightError(f"rank {rank} left no program")
            key = _hash(answer)
            if key not in index:
                index[key] = len(programs)
                programs.append(decode_program(answer.program))
            program_of[rank] = index[key]
        if not any(op.kernels or op.collective for program in programs for op in program.ops):
            raise InputError(
                self.request.script, "put nothing on the GPU: its steps launched no kernel",
                'move the model and its data there (model.cuda(), device="cuda")',
            )  # fmt: skip
        order = tuple(program_of[_stand_in(rank, list(program_of), found)] for rank in range(world))
        groups = groups_of(found, world)
        for answer in self.answers.values():
            for message in answer.messages:
                groups[message.name] = _pairs(message.family, message.start, message.end, found, world)
        answers = list(self.answers.values())
        memory = tuple(a.memory for a in answers if a.memory is not None)
        notes = list(dict.fromkeys(n for a in answers for n in a.notes))
        if world > 1:
            listed = ", ".join(str(r) for r in sorted(self.answers))
            notes.append(f"captured ranks {listed} of {world}: {counted(len(programs), 'distinct program')}")
        return CapturedStep(
            name, self.request.gpu.name, Job(tuple(programs), order, groups), memory, self.request.steps,
            dict(reduce(or_, (Counter(a.guessed) for a in answers))),
            dict(reduce(or_, (Counter(a.assumed) for a in answers))), tuple(notes),
            answers[0].torch, self._samples(answers[0], found),
        )  # fmt: skip

    def _samples(self, answer: Answer, found: Sequence[Family]) -> Samples:
        """Of all ranks: as stated, or of one rank times all where every rank has samples of its own."""
        one = answer.samples
        if self.batch:
            return replace(one, count=self.batch * self.request.steps, stated=True)
        world = self.request.world
        replicated = all(len(group) in (1, world) for family in found for group in family.sets)
        return replace(one, count=one.count * world) if replicated else Samples()


def _pairs(family: str, start: int, end: int, found: Sequence[Family], world: int) -> tuple[Group, ...]:
    home = next((f for f in found if f.name == family), None)
    sets = home.sets if home else [tuple(range(world))]
    low, high = min(start, end), max(start, end)
    return tuple(
        Group(f"{family} {i}: {start}>{end}", (ranks[low], ranks[high])) for i, ranks in enumerate(sets)
    )


def _talks(answer: Answer, family: Family) -> bool:
    """Whether a rank sends messages within this family, so that its members surely differ."""
    return any(m.family == family.name for m in answer.messages)


def _stand_in(rank: int, captured: Sequence[int], found: Sequence[Family]) -> int:
    """The captured rank in the same place of most groups; not rank 0 where another serves as well."""
    if rank in captured:
        return rank
    mine = [family.coordinate(rank) for family in found]

    def likeness(other: int) -> tuple[int, int]:
        theirs = [family.coordinate(other) for family in found]
        return sum(a == b for a, b in zip(mine, theirs, strict=True)), other

    return max(captured, key=likeness)


def _hash(answer: Answer) -> str:
    """What a rank does, apart from its name and from where in a group its messages go."""
    if answer.program is None:
        return ""
    return hashlib.sha1(
        msgspec.json.encode([answer.program.names, answer.program.kernels, answer.program.ops])
    ).hexdigest()


def _captured_in_process(request: Request, rank: int) -> Answer:
    with tempfile.TemporaryDirectory(prefix="stepsight-") as folder:
        answer = Path(folder) / "answer.json"
        asked = msgspec.structs.replace(request, rank=rank, answer=str(answer), parent=os.getpid())
        question = Path(folder) / "request.json"
        question.write_bytes(msgspec.json.encode(asked))
        quiet = {"KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false", "PYTORCH_JIT": "0"}
        environment = {**os.environ, **quiet}
        package = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (package, os.environ.get("PYTHONPATH", "")) if part
        )
        command = [sys.executable, "-m", "stepsight.capturing.worker", str(question)]
        process = subprocess.Popen(command, env=environment, stdout=_STANDARD_ERROR, start_new_session=True)
        try:
            code = process.wait()
        except BaseException:
            end(process)
            raise
        finally:
            end_group(process.pid)
        return answer_of(answer, code)


def answer_of(path: Path, code: int) -> Answer:
    """The process's answer, or the error that its end means."""
    try:
        answer = msgspec.json.decode(path.read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError):
        raise StepsightError(f"the capturing process ended with code {code} and without an answer") from None
    if answer.stage in ("captured", "needs"):
        return answer
    if answer.stage == "failed":
        raise ScriptFailedError(code, answer.problem)
    if answer.stage in ("refused", "unsupported", "no step"):
        raise StepsightError(answer.problem)
    if answer.stage == "starting" and code < 0:
        name = signal.Signals(-code).name
        raise StepsightError(f"the fake GPU could not be set up ({name}); {RECORD}")
    raise StepsightError(_ended(code))


def _ended(code: int) -> str:
    """What happened to a script that left no answer: it or somebody else ended its process."""
    if code >= 0:
        return f"the script ended its process with os._exit({code}) before a step was recorded"
    name = signal.Signals(-code).name
    if name in _CRASHES:
        return f"the script crashed ({name}) before a step was recorded; {RECORD}"
    full = ", as the system does where memory is full" if name == "SIGKILL" else ""
    return f"the script was ended by {name} before a step was recorded{full}"


_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
