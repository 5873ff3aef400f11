"""The process that runs a script as one rank: ``python -m stepsight.capturing.worker REQUEST.json``.

It ends with os._exit: torch would otherwise tear down device guards whose code is already gone.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from stepsight.capturing.program import ProgramBuilder, families
from stepsight.capturing.request import Answer, Assumptions, MessageGroup, Request
from stepsight.capturing.step import RankMemoryUse, encode_program
from stepsight.capturing.supported import RECORD, UnsupportedError, explained
from stepsight.errors import StepsightError
from stepsight.processes import end_with_parent


class Worker:
    """Carries out one request."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.started = time.process_time()
        self.needs = -1
        self.problem = ""
        self.refusal = ""
        self.exited = ""

    def answer(self, answer: Answer) -> None:
        answer.rank = self.request.rank
        answer.seconds = time.process_time() - self.started
        target = Path(self.request.answer)
        partial = target.with_suffix(".part")
        partial.write_bytes(msgspec.json.encode(answer))
        partial.replace(target)

    def run(self) -> int:
        """The exit code: the script's own where it fails."""
        self.answer(Answer("starting"))
        try:
            session = self._session()
        except StepsightError as error:
            self.answer(Answer("refused", str(error)))
            return 2
        self.answer(Answer("running"))
        code, ended = self._script(session)
        if session.captured is not None:
            self.answer(answer_from(self.request, session))
            return 0
        if self.needs >= 0:
            self.answer(Answer("needs", f"waits for rank {self.needs}", needs=self.needs))
            return 0
        if self.refusal:
            self.answer(Answer("unsupported", self.refusal))
            return 2
        if ended:  # with an exception or an exit code of its own
            self.answer(Answer("failed", self.problem))
            return code
        self.answer(Answer("no step", self.exited or _why(session)))
        return 2

    def _session(self) -> Any:
        try:
            import torch
        except ImportError:
            raise StepsightError("torch is not installed; pip install 'stepsight[torch]'") from None
        from stepsight.capturing.supported import TRIED, missing

        lacking = missing()
        if lacking:
            raise StepsightError(
                f"torch {torch.__version__} lacks {', '.join(lacking)}, which capture needs; "
                f"install torch {TRIED} or newer, or {RECORD}"
            )
        from stepsight.capturing.guard import GuardUnavailableError
        from stepsight.capturing.session import Session
        from stepsight.capturing.supported import SelfTestError

        try:
            return Session(settings_of(self.request), self._progress)
        except (GuardUnavailableError, SelfTestError) as error:
            raise StepsightError(
                f"torch {torch.__version__} cannot be run without a GPU here ({error}); {RECORD}"
            ) from None

    def _progress(self, text: str) -> None:
        print(f"stepsight: rank {self.request.rank}: {text}", file=sys.stderr, flush=True)

    def _script(self, session: Any) -> tuple[int, bool]:
        """Run the script; its exit code, and whether it ended by failing or exiting itself."""
        from stepsight.capturing.boundaries import StepsRecordedError
        from stepsight.capturing.process_group import NeedsRankError

        r = self.request
        sys.argv = [r.script, *r.arguments]
        sys.path.insert(0, str(Path.cwd()) if r.module else str(Path(r.script).resolve().parent))
        try:
            with session:
                if r.module:
                    runpy.run_module(r.script, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(r.script, run_name="__main__")
        except StepsRecordedError:
            return 0, False
        except NeedsRankError as needs:
            self.needs = needs.rank
            return 0, False
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
            called = "" if stop.code is None else repr(stop.code)
            self.exited = f"the script called sys.exit({called}) after {_steps(session)}"
            self.problem = str(stop.code) if isinstance(stop.code, str) else self.exited
            return code, code != 0
        except UnsupportedError as refused:
            self.refusal = str(refused)
            return 2, True
        except BaseException as error:
            if session.captured is not None:
                return 0, False
            self.problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            traceback.print_exc()
            self.refusal = explained(error)
            return 1, True
        return 0, False


def settings_of(r: Request) -> Any:
    """What a session needs of a request."""
    from stepsight.capturing.device import FakeGpu
    from stepsight.capturing.session import Settings

    gpu = FakeGpu(
        r.gpu_name, r.capability, r.memory_bytes, r.multiprocessors, r.l2_bytes, min(r.per_node, r.world)
    )
    assumptions = Assumptions.read(r.assume)
    return Settings(gpu, r.rank, r.world, r.per_node, r.warmup, r.steps, assumptions, r.exchange, r.guard)


def answer_from(r: Request, session: Any) -> Answer:
    """What a session recorded: the rank's program, its groups, memory and notes."""
    import torch

    from stepsight.capturing.fusion import compiled_step
    from stepsight.capturing.program import Lowering

    captured = session.captured
    lowering = Lowering(captured.precision, session.settings.assumptions)
    builder = ProgramBuilder(r.rank, r.world, families(captured.groups, r.world), lowering)
    step, compile_notes = compiled_step(captured, lowering)
    program = builder.build(step)
    use = captured.memory
    memory = RankMemoryUse(
        r.rank, use.peak_active_bytes, use.peak_reserved_bytes, use.parts_bytes, use.peak_operator
    )
    messages = [MessageGroup(n, f.name, a, b) for n, (f, a, b) in builder.message_groups.items()]
    return Answer(
        "captured", "", -1, r.rank, encode_program(program), [(d, list(g)) for d, g in captured.groups],
        messages, memory, dict(builder.guessed), captured.assumed, [*captured.notes, *compile_notes],
        str(torch.__version__), captured.samples,
    )  # fmt: skip


def _steps(session: Any) -> str:
    """How far a script came."""
    seen, wanted = session.boundaries.seen, session.settings.warmup + session.settings.steps
    return f"{seen} optimizer steps; {wanted} are needed"


def _why(session: Any) -> str:
    """Why a script that ended by itself left no step."""
    if not session.recorder.gpu_calls:
        return "the script never used a GPU: nothing ran on 'cuda'; move the model and its inputs there"
    if not session.boundaries.seen:
        return (
            "the script took no optimizer step; a step is what lies between two calls of "
            "torch.optim.Optimizer.step"
        )
    return f"the script ended after {_steps(session)}: lower --warmup, or let it take more"


def main() -> None:
    request = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Request)
    end_with_parent(request.parent or None)
    code = 1
    try:
        code = Worker(request).run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
