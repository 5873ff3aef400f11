"""The process that runs a script as one rank: ``python -m stepsight.capturing.worker REQUEST.json``.

It ends with os._exit: torch would otherwise tear down device guards whose code is already gone.
"""

from __future__ import annotations

import logging
import os
import re
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stepsight.capturing.request import RECORD, Answer, Request, UnsupportedError, explained
from stepsight.documents import write_whole
from stepsight.errors import StepsightError
from stepsight.processes import end_with_parent

if TYPE_CHECKING:
    from stepsight.capturing.session import Session

OLDEST = (2, 9)
"""The torch that a capture needs."""


def run(request: Request) -> int:
    """Carry out a request; the exit code, which is the script's own where it fails."""
    started = time.process_time()

    def answer(made: Answer) -> None:
        made.seconds = time.process_time() - started
        write_whole(request.answer, msgspec.json.encode(made))

    answer(Answer("starting"))
    try:
        session = _session(request)
    except StepsightError as error:
        answer(Answer("refused", str(error)))
        return 2
    answer(Answer("running"))
    ended, code = _script(request, session)
    answer(session.captured or ended)
    return 0 if session.captured else code


def _session(request: Request) -> Session:
    try:
        import torch
    except ImportError:
        raise StepsightError("torch is not installed; pip install torch") from None
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < OLDEST:
        newer = ".".join(map(str, OLDEST))
        raise StepsightError(
            f"capture needs torch {newer} or newer, not {torch.__version__}; install it, or {RECORD}"
        )
    # Shapes that do not fit are the script's mistake, which its own traceback shows.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    from stepsight.capturing.guard import GuardUnavailableError
    from stepsight.capturing.session import SelfTestError, Session

    def progress(text: str) -> None:
        print(f"stepsight: rank {request.rank}: {text}", file=sys.stderr, flush=True)

    try:
        return Session(request, progress)
    except (GuardUnavailableError, SelfTestError) as error:
        raise StepsightError(
            f"torch {torch.__version__} cannot be run without a GPU here ({error}); {RECORD}"
        ) from None


def _script(r: Request, session: Session) -> tuple[Answer, int]:
    """Run the script; how it ended where no step was captured, and the exit code."""
    from stepsight.capturing.boundaries import StepsRecordedError
    from stepsight.capturing.process_group import NeedsRankError

    sys.argv = [r.script, *r.arguments]
    sys.path.insert(0, str(Path.cwd()) if r.module else str(Path(r.script).resolve().parent))
    try:
        with session:
            if r.module:
                runpy.run_module(r.script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(r.script, run_name="__main__")
    except StepsRecordedError:
        pass
    except NeedsRankError as needs:
        return Answer("needs", f"waits for rank {needs.rank}", needs.rank), 0
    except SystemExit as stop:
        called = "" if stop.code is None else repr(stop.code)
        exited = f"the script called sys.exit({called}) after {_steps(session)}"
        if not stop.code:
            return Answer("no step", exited), 2
        problem = stop.code if isinstance(stop.code, str) else exited
        return Answer("failed", problem), stop.code if isinstance(stop.code, int) else 1
    except UnsupportedError as refused:
        return Answer("unsupported", str(refused)), 2
    except BaseException as error:
        if session.captured is None:
            print(own_frames(error), end="", file=sys.stderr, flush=True)
        refusal = explained(error)
        if refusal:
            return Answer("unsupported", refusal), 2
        return Answer("failed", f"{type(error).__name__}: {error}".partition("\n")[0]), 1
    return Answer("no step", _why(session)), 2


_HERE = str(Path(__file__).parents[1])
_LIBRARY = re.compile(r"^<frozen|/(site|dist)-packages/|/lib/python3\.\d+/")


def own_frames(error: BaseException) -> str:
    """A traceback of the script's own frames, without those of torch, of other packages and of stepsight.

    Where stepsight itself is wrong, its last frame stays.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not _LIBRARY.search(f.filename) and not f.filename.startswith(_HERE)]
    if frames and frames[-1].filename.startswith(_HERE) and not isinstance(error, RuntimeError):
        own.append(frames[-1])
    if not own and not isinstance(error, SyntaxError | OSError):
        return "".join(traceback.format_exception(error))
    head = ["Traceback (most recent call last):\n"] if own else []
    return "".join([*head, *traceback.format_list(own), *traceback.format_exception_only(error)])


def _steps(session: Session) -> str:
    """How far a script came."""
    seen, wanted = session.boundaries.seen, session.request.warmup + session.request.steps
    return f"{seen} optimizer steps; {wanted} are needed"


def _why(session: Session) -> str:
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
        code = run(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
