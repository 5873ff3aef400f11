"""What a rank does in one pass over a piece of the model: kernels, messages, and what it keeps.

Kernels of a pass are counted, not listed: layers are identical, so a stage's pass is its layer's times the
number of layers. A job holds them condensed, one launch for each category (`condensed`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stepsight.kernels.families import category
from stepsight.program.job import Copies, Kernel

Counted = TypeVar("Counted")


@dataclass(frozen=True, slots=True)
class Message:
    """A collective inside a pass: over which axis, of what kind, how many bytes.

    ``concurrent``: the kernels that run while it is under way; without them, compute waits for it.
    ``hidden``: it runs alongside all else that the pass computes, which stands for another micro-batch's
    compute.
    """

    axis: str
    kind: str
    bytes: float
    dtype: str = "bf16"
    concurrent: tuple[Kernel, ...] = ()
    hidden: bool = False
    copies: Copies | None = None


@dataclass(slots=True, eq=False)
class Pass:
    """Kernels and messages by count, and the bytes kept for the backward pass.

    ``more_launches``: what the host launches beyond one of each, where a kernel here stands for several;
    ``host_waits``: how often the host waits for the device, to read what decides the next launches.
    """

    kernels: Counter[Kernel] = field(default_factory=Counter)
    messages: Counter[Message] = field(default_factory=Counter)
    kept_bytes: float = 0.0
    more_launches: int = 0
    host_waits: int = 0

    @classmethod
    def of(
        cls,
        kernels: Iterable[Kernel],
        messages: Iterable[Message] = (),
        kept_bytes: float = 0.0,
        more_launches: int = 0,
        host_waits: int = 0,
    ) -> Pass:
        return cls(Counter(kernels), Counter(messages), kept_bytes, more_launches, host_waits)

    def __add__(self, other: Pass) -> Pass:
        return Pass(
            _added(self.kernels, other.kernels),
            _added(self.messages, other.messages),
            self.kept_bytes + other.kept_bytes,
            self.more_launches + other.more_launches,
            self.host_waits + other.host_waits,
        )

    def times(self, n: int) -> Pass:
        """This pass over ``n`` identical layers."""
        if n == 1:
            return self
        return Pass(
            Counter({k: c * n for k, c in self.kernels.items()}),
            Counter({m: c * n for m, c in self.messages.items()}),
            self.kept_bytes * n,
            self.more_launches * n,
            self.host_waits * n,
        )

    def without_overlap(self) -> Pass:
        """This pass without a concurrent micro-batch."""
        if not any(m.hidden for m in self.messages):
            return self
        messages = Counter({replace(m, hidden=False): n for m, n in self.messages.items()})
        return replace(self, messages=messages)

    @property
    def launches(self) -> int:
        """Kernels and collectives that the host launches."""
        return sum(self.kernels.values()) + sum(self.messages.values()) + self.more_launches


def _added(one: Counter[Counted], other: Counter[Counted]) -> Counter[Counted]:
    """Both counts together; what `Counter` itself would look up one by one is copied."""
    if not one:
        return other.copy()
    total = one.copy()
    for what, count in other.items():
        total[what] = total.get(what, 0) + count
    return total


def condensed(kernels: Mapping[Kernel, int], name: str) -> tuple[Kernel, ...]:
    """One launch for each category of kernels, standing for all of them one after the other."""
    groups: dict[str, list[tuple[Kernel, int]]] = {}
    for kernel, count in kernels.items():
        groups.setdefault(category(kernel.family), []).append((kernel, count))
    return tuple(
        Kernel(parts[0][0].family, dtype=parts[0][0].dtype, operator=f"{name} {label}", parts=tuple(parts))
        for label, parts in groups.items()
    )
