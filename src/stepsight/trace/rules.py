"""What was read off runs rather than derived: every threshold and share that turning a trace into a job uses.

A rule that rests on fewer than three independent sources is off unless physics states it. `without` switches
rules off for a while: `stepsight validate traces --without NAME` shows what one is worth, and a run is scored
without the rules that lose too many sources when its own is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from stepsight.errors import InputError
from stepsight.records import nearest

FEWEST_SOURCES = 3
_WITHOUT: ContextVar[frozenset[str]] = ContextVar("rules switched off", default=frozenset())

LIPLUS, TORCHREC, META, NANOGPT = "liplus", "torchrec_dlrm_4xV100", "meta_dlrm", "nanogpt"
DLRM8, MEGATRON8, RESNET, TORCHREC16 = "dlrm_8xV100", "megatron_tp8", "resnet50_V100", "torchrec_dlrm_A100"
COMPILED = "compiled_transformer"
"""Collections of traces, by how their folders' names begin."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One constant: its value, what it rests on, and which figure it moves.

    ``sources`` are the collections of traces in which it was seen; ``physics`` says that hardware or a
    library's code states it, so that no run has to. ``off`` is the value that makes it do nothing.
    """

    name: str
    value: float
    unit: str
    says: str
    moves: str
    sources: tuple[str, ...] = ()
    physics: str = ""
    off: float | None = None

    def is_on(self, left_out: str = "") -> bool:
        """Whether it is used by default, and with one source left out."""
        kept = [s for s in self.sources if not (left_out and left_out.startswith(s))]
        return bool(self.physics) or len(kept) >= FEWEST_SOURCES or self.off is None


class Rules(Mapping[str, Rule]):
    """All rules by name."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = MappingProxyType({rule.name: rule for rule in rules})

    def __getitem__(self, name: str) -> Rule:
        return self._rules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def value(self, name: str) -> float:
        """The rule's value, or the one that makes it do nothing where it is off."""
        rule = self._rules[name]
        off = rule.off is not None and (name in _WITHOUT.get() or not rule.is_on())
        return rule.off if off and rule.off is not None else rule.value

    def on(self, name: str) -> bool:
        """Whether a rule that can be switched off is on."""
        return name not in _WITHOUT.get() and self._rules[name].is_on()

    @property
    def optional(self) -> list[str]:
        """The rules that can be switched off."""
        return [name for name, rule in self._rules.items() if rule.off is not None]

    def resting_on(self, source: str) -> list[str]:
        """The rules that are off when a source is left out."""
        return [name for name in self.optional if not self._rules[name].is_on(source)]

    @contextmanager
    def without(self, names: Iterable[str]) -> Iterator[None]:
        """Switch rules off inside a ``with`` block; traces must be read inside it."""
        wanted = frozenset(names)
        for name in wanted:
            if name not in self.optional:
                known = name in self._rules
                raise InputError(
                    f"--without {name}", "cannot be switched off" if known else "no such rule",
                    "" if known else nearest(name, self.optional),
                )  # fmt: skip
        token = _WITHOUT.set(_WITHOUT.get() | wanted)
        try:
            yield
        finally:
            _WITHOUT.reset(token)


RULES = Rules((
    # linking
    Rule("clock_drift", 30.0, "µs", "stamps of host and GPU differ by up to this within a trace",
         "which operator a launch beside none belongs to; what a wait waited for", (TORCHREC,),
         physics="the profiler converts the stamps of two clocks"),
    Rule("clock_quantile", 0.005, "share", "launches joined with a kernel of another moment; so many are"
         " ignored when an early GPU clock is moved", "replay of traces with an early GPU clock", (TORCHREC,),
         physics="no kernel begins before its launch"),
    Rule("shortest_launch", 5.0, "µs", "from the start of a launch call to its kernel on an idle stream",
         "the shift of an early GPU clock", (DLRM8, TORCHREC, RESNET)),
    Rule("engine_sum", 60.0, "µs", "autograd adds a gradient up within this behind the node that made it",
         "operators of gradient additions", (RESNET,),
         physics="the engine adds gradients after a node has returned"),
    Rule("host_returns", 40.0, "µs", "a host that waits for an event unrecorded goes on within this",
         "hidden waits; what a synchronize call waited for", (TORCHREC, TORCHREC16, LIPLUS), off=0.0),
    Rule("sureness", 10.0, "times", "a wait must be this many times longer than the slack granted to it",
         "hidden waits", physics="less than one in ten by chance"),
    # the step
    Rule("allocation_storm", 0.25, "share of the step", "more in allocation calls makes a step untypical",
         "which step is taken", physics="the caching allocator asks for no memory once it holds a step's"),
    Rule("queue_gap", 10.0, "µs", "a kernel that begins within this of its turn began at once",
         "what counts as a delay without a cause", (DLRM8, NANOGPT, RESNET, MEGATRON8)),
    Rule("unexplained_delays", 1.0, "share", "delays while the GPU is idle that no record explains stay",
         "DLRM with CUDA graphs", (TORCHREC16,), physics="the GPU's own timeline is the step's", off=0.0),
    Rule("members_end_together", 60.0, "µs", "ranks of one communicator leave a collective within this",
         "process groups that a trace does not name", physics="a collective ends for all its members"),
    # sizing
    Rule("main_kernel", 1.0, "switch", "a call's recorded inputs size its longest kernel; the others are"
         " sized by their own grids", "compiled regions, embedding and convolution gradients",
         (META, LIPLUS, TORCHREC16), physics="inputs are the call's, not each kernel's", off=0.0),
    Rule("usual_gemm_rate", 0.7, "share of peak", "what a product reaches, to choose among listed tensors",
         "products of compiled regions", physics="large products of the GEMM tables reach 0.5 to 0.95"),
    Rule("gemm_rate_slack", 1.2, "ln", "a product that would run further from the usual rate is another one",
         "products of compiled regions", physics="0.2 of the peak to all of it"),
    Rule("deepest_split", 32.0, "parts", "a product's sum is split into no more parts than this",
         "products of compiled regions", physics="cuBLAS and CUTLASS split the sum so far"),
    Rule("opaque_kernels", 1.0, "switch", "a kernel whose sizes nothing tells keeps the time the trace shows",
         "every trace without recorded shapes", (META, TORCHREC, NANOGPT, LIPLUS, COMPILED), off=0.0),
))  # fmt: skip
"""Every rule. The spreads of guessed sizes stand in `sizing.guessing.size_spread`, host pauses in
`step.sleeps`, anchoring's weights in `prediction.traced.anchoring`."""
