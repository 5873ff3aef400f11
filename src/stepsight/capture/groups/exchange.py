"""What ranks tell each other outside collectives: objects and small numbers, kept between captures.

Ranks are captured one after the other. A rank that waits for another's word (a pipeline stage for the shapes
of the stage before) either finds it in the folder, or says whom it waits for: that rank is captured first,
and this one again.
"""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any


class NeedsRankError(BaseException):
    """Another rank must be captured first; a BaseException, so that scripts do not catch it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        super().__init__(f"rank {rank} must be captured first")


class Exchange:
    """Messages by sender, receiver and number. Without a folder nothing is kept and nothing awaited."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = Path(folder) if folder else None
        self.rank = rank
        self._count: Counter[tuple[str, int]] = Counter()

    def put(self, kind: str, receiver: int, value: Any) -> None:
        path = self._path(kind, self.rank, receiver, receiver)
        if path is not None:
            path.write_bytes(pickle.dumps(value))

    def get(self, kind: str, sender: int) -> Any:
        """The next message of a sender, or `NeedsRankError`; None without a folder."""
        path = self._path(kind, sender, self.rank, sender)
        if path is None:
            return None
        if not path.exists():
            raise NeedsRankError(sender)
        return pickle.loads(path.read_bytes())  # written by this job's own ranks

    def _path(self, kind: str, sender: int, receiver: int, peer: int) -> Path | None:
        if self.folder is None:
            return None
        self._count[f"{kind} {sender}>{receiver}", peer] += 1
        number = self._count[f"{kind} {sender}>{receiver}", peer]
        return self.folder / f"{kind}-{sender}-{receiver}-{number}"
