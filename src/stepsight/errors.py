"""What stepsight raises when the user, not the program, must act."""

from __future__ import annotations


class StepsightError(Exception):
    """Something the user can fix. The message names the place, what is wrong and the fix."""


class InputError(StepsightError):
    """A file or field that cannot be used as given."""

    def __init__(self, where: str, problem: str, fix: str = "") -> None:
        self.where, self.problem, self.fix = where, problem, fix
        super().__init__(f"{where}: {problem}" + (f"; {fix}" if fix else ""))


class ScriptFailedError(StepsightError):
    """A user's script failed by itself; its traceback has been shown. ``code`` is its exit code, ``problem``
    the last line it printed."""

    def __init__(self, code: int, problem: str = "") -> None:
        self.code, self.problem = code, problem
        super().__init__(f"the script failed with exit code {code}" + (f": {problem}" if problem else ""))
