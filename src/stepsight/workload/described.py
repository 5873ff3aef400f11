"""What every kind of workload has: its description, a name, a number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Description(Protocol):
    """The checked fields of a workload file."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int: ...


Config = TypeVar("Config", bound=Description)


@dataclass(frozen=True)
class Described(Generic[Config]):
    """A workload by its description.

    ``open_ranks`` is the content of a file that leaves the number of ranks to the platform.
    """

    config: Config
    open_ranks: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def ranks(self) -> int:
        return self.config.ranks
