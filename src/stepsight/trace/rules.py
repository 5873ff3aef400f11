"""What was read off runs rather than derived: every threshold and share that turning a trace into a job uses.

A rule that rests on fewer than three independent sources is off unless physics states it. `without` switches
rules off for a while: `lab score traces --without NAME` shows what one is worth. `left_out` leaves a
source out: constants fitted on traces are pooled without it (`trace.fitted`), and rules that lose too many
sources are off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from stepsight.constants import FEWEST_RUNS, Basis
from stepsight.errors import InputError
from stepsight.records import nearest
from stepsight.trace.fitted import fitted_value, source_of

_LEFT_OUT: ContextVar[str] = ContextVar("source left out", default="")
_WITHOUT: ContextVar[frozenset[str]] = ContextVar("rules switched off", default=frozenset())

LIPLUS, TORCHREC, META, NANOGPT = "liplus", "torchrec_dlrm_4xV100", "meta_dlrm", "nanogpt"
DLRM8, MEGATRON8, RESNET, TORCHREC16 = "dlrm_8xV100", "megatron_tp8", "resnet50_V100", "torchrec_dlrm_A100"
COMPILED = "compiled_transformer"
"""Collections of traces, by how their folders' names begin."""
LN, GUESSED = "standard deviation of ln(time)", "intervals of traces without shapes"


@dataclass(frozen=True, slots=True)
class Rule:
    """One constant: its value, what it rests on, and which figure it moves.

    ``sources`` are the collections of traces in which it was seen; ``physics`` says that hardware or a
    library's code states it, so that no run has to. ``off`` is the value that makes it do nothing.
    ``rests_on`` says what else it rests on, or that it was chosen; ``runs`` counts the runs in that.
    """

    name: str
    value: float
    unit: str
    says: str
    moves: str
    sources: tuple[str, ...] = ()
    physics: str = ""
    off: float | None = None
    rests_on: str = ""
    runs: int | None = None

    @property
    def basis(self) -> Basis:
        """What it rests on, as other areas' constants state it."""
        counted = self.runs if self.runs is not None else len(self.sources) or None
        rests_on = self.physics or self.rests_on or ", ".join(self.sources)
        return Basis(self.unit, rests_on, self.moves, None if self.physics else counted)

    def is_on(self, left_out: str = "") -> bool:
        """Whether it is used by default, and with one source left out."""
        kept = [s for s in self.sources if not (left_out and left_out.startswith(s))]
        return bool(self.physics) or len(kept) >= FEWEST_RUNS or self.off is None


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
        """The rule's value, or the one that makes it do nothing where it is off.

        One that is fitted (`trace.fitted`) is pooled without the source that is left out.
        """
        rule = self._rules[name]
        fitted = fitted_value(name, _LEFT_OUT.get())
        if fitted is not None:
            return fitted
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
    def left_out(self, folder: str) -> Iterator[None]:
        """Leave a folder's source out inside a ``with`` block: what rests on it is fitted again or off."""
        token = _LEFT_OUT.set(source_of(folder))
        try:
            with self.without(self.resting_on(folder)):
                yield
        finally:
            _LEFT_OUT.reset(token)

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
    Rule("opaque_kernels", 1.0, "switch", "a kernel whose sizes nothing tells keeps the time the trace shows",
         "every trace without recorded shapes", (META, TORCHREC, NANOGPT, LIPLUS, COMPILED), off=0.0),
    # reading and linking: what the rules above leave open
    Rule("stream_slack", 4.0, "µs", "an end and the start that it allowed may be stamped so far the wrong way"
         " round", "what a wait waited for",
         rests_on="chosen: kernels of two streams share the device's clock; host and device mostly agree as"
         " well after the shift, and what does not falls to clock_drift"),
    Rule("return_slack", 2.0, "µs", "a blocking copy's end may be stamped so much behind its call's return",
         "which copies block the host", rests_on="chosen"),
    Rule("hidden_gap", 2000.0, "µs", "a shorter gap of the host is not looked at for a hidden wait",
         "hidden waits", rests_on="chosen"),
    Rule("left_queued", 1000.0, "µs",
         "work that outlasts a hidden wait by more shows that none was waited for",
         "hidden waits", rests_on="chosen"),
    Rule("clocks_apart", 1000.0, "µs", "clocks of two ranks that differ by less are taken as they are",
         "replay of runs over several hosts", rests_on="chosen: ranks of one host differ by"
         " at most 0.1 ms in the traces at hand",
         physics="members of a communicator leave a collective together"),
    Rule("ranks_start_together", 30e6, "µs", "ranks of one run write their first events within this",
         "which files make a run", rests_on="chosen: a second run of the same ranks is told by its ranks"),
    # the step: host
    Rule("sync_call", 4.0, "µs", "what a synchronize call costs that finds nothing to wait for", "host times",
         rests_on="the shortest in V100 and A100 traces", runs=2),
    Rule("blocking_call", 10.0, "µs", "the host's own part of a copy call that returns when the copy is done",
         "host times of steps with blocking copies", rests_on="chosen"),
    Rule("full_queue", 1000.0, "launches", "with so many waiting on the device a call may be held up",
         "host times of steps that the GPU bounds", physics="CUDA's queue holds 1,024",
         rests_on="a call takes 5 µs up to 1,020 waiting launches and 64 to 117 µs beyond (four H100 traces"
         " of 2025, one V100 trace of 2021)", runs=5),
    Rule("most_launches", 12.0, "launches", "an operator with more is taken apart",
         "host times of optimizers and compiled graphs", rests_on="chosen"),
    Rule("shortest_sleep", 10_000.0, "µs", "a shorter gap is an operator's own, not a pause made on purpose",
         "replay of programs that sleep",
         rests_on="far above any operator's own gap; the sleeps seen (TorchRec,"
         " 2023) are of 20 ms, 40 ms and 1 s", runs=1),
    Rule("even_sleeps", 0.02, "share", "the sleeps of different steps differ by less than this",
         "replay of programs that sleep",
         rests_on="TorchRec, 2023: sleeps differ by 0.3 %, stalls by over 10 %",
         runs=1),
    # the step: device and other ranks
    Rule("surely_idle", 5.0, "µs", "a launch so long behind the stream's last work met an idle stream",
         "launch delay of the traced machine", rests_on="chosen"),
    Rule("surely_queued", 10.0, "µs", "a launch so long before its stream was free was queued",
         "gap between kernels of the traced machine", rests_on="chosen"),
    Rule("shortest_collective", 1.0, "µs", "a collective takes no less, whenever its last rank came",
         "none: a safeguard", rests_on="chosen"),
    Rule("typical_call", 1.08, "times the shortest",
         "what calls of one kind and size take without any waiting",
         "traces with absent ranks; collectives elsewhere",
         rests_on="the median of 786 calls in seven runs that"
         " have every rank's trace (672 of them Megatron's on 8×A100)", runs=7),
    Rule("longest_call", 1.28, "times the shortest",
         "a call of the same kind and size that takes longer waited",
         "traces with absent ranks; collectives elsewhere", rests_on="the 90th percentile of the same calls",
         runs=7),
    # the step: where it begins and what is said about it
    Rule("stray_step", 0.05, "share of the median step", "a shorter range was open when recording stopped",
         "which steps there are", rests_on="chosen"),
    Rule("fewest_repeats", 3.0, "times", "what recurs less often may be layers", "steps without marks",
         rests_on="chosen: twice the same may be two layers, three times evenly over the trace are steps"),
    Rule("fewest_votes", 3.0, "kernels", "so many kinds must recur as often as there are steps",
         "steps without marks", rests_on="chosen"),
    Rule("even_gaps", 0.5, "share of the median gap", "steps begin no closer to each other",
         "steps without marks",
         rests_on="chosen"),
    Rule("steps_cover", 0.6, "share of the trace", "steps, and the kernels that repeat with them, cover more",
         "steps without marks", rests_on="chosen"),
    Rule("much_recording", 0.1, "share of the step",
         "the profiler's own gaps from which a step is another one",
         "what is said; which runs are scored apart", rests_on="chosen"),
    Rule("many_guessed", 0.05, "share of the kernels' time", "without recorded sizes, from which it is said",
         "none: a note", rests_on="chosen"),
    Rule("much_cut_off", 0.05, "share of GPU time", "of kernels launched before the recording, from which a"
         " single step is said to be cut", "none: a note", rests_on="chosen"),
    Rule("much_delay", 0.1, "share of the step", "unexplained delays from which they are said",
         "none: a note",
         rests_on="chosen"),
    # guessing sizes
    Rule("unknown_k", 1024.0, "elements", "a product's reduced size where nothing shows it",
         "products of traces without shapes", rests_on="chosen: a common hidden size"),
    Rule("chunk_filled", 0.75, "share", "of the chunks of multi-tensor kernels", "optimizers without shapes",
         rests_on="a tensor's last chunk is half full on average, most tensors have one to four"),
    Rule("few_elements", 65536.0, "threads", "a kernel with fewer is launch latency whatever it does",
         "intervals without shapes", rests_on="chosen"),
    Rule("latency_bound", 20.0, "µs", "a kernel of few threads that takes longer loops over more work",
         "persistent kernels without shapes", off=float("inf"),
         physics="an empty kernel takes 2 to 10 µs, and a thread reads its operands in one or two more"),
    Rule("lookup_little", 0.3, "per cent of a backward lookup", "each of its kernels that is not named",
         "backward lookups of traces", rests_on="FBGEMM on an A100, 2022; only the sum counts", runs=1),
    # how far a step may be off from what the run's other steps say
    Rule("individual_spread", 0.05, "standard deviation of ln(host time)",
         "a step's host time by the run's other steps or ranks", "intervals of traces on the same machine",
         rests_on="root mean square 0.048 over 19 training runs (0.01 to 0.11 a run)", runs=19),
    Rule("late_spread", 0.8, "standard deviation of ln(lateness)",
         "how late ranks without a trace came in one step against the run's other steps",
         "intervals of traces with absent ranks",
         rests_on="0.82, the root mean square over 32 steps of eight runs, where it was over 1 % of the step",
         runs=8),
    Rule("models_spread", 0.04, LN, "a step by the models beyond what its parts explain",
         "intervals of predictions by the models alone",
         rests_on="between the 3.00 % and 5.21 % that the published method reports end to end"),
    # how far a kernel's time may be off because its sizes were inferred (sizing.unrecorded)
    Rule("spread_least", 0.1, LN, "no guess is better", GUESSED,
         rests_on="chosen: most element counts, concatenations and optimizers are exact"),
    Rule("spread_counted", 0.16, LN, "element-wise grids count elements, not inputs", GUESSED,
         rests_on="22 traces", runs=22),
    Rule("spread_compiled", 0.93, LN, "compiled kernels: their inputs and loops do not show", GUESSED,
         rests_on="5 traces", runs=5),
    Rule("spread_lookup", 1.7, LN, "lookups: how many rows a bag has does not show", GUESSED,
         rests_on="1 trace", runs=1),
    Rule("spread_collective", 0.93, LN, "collectives sized by the kernels around them", GUESSED,
         rests_on="7 runs: a step's sum was 0.3 to 3.9 times the true one", runs=7),
    Rule("spread_unknown", 2.2, LN, "a kernel known by its grid alone, taken to touch one element a thread",
         GUESSED, rests_on="23 traces, nearly always too short: convolutions, attention", runs=23),
    Rule("spread_batch_norm", 0.15, LN, "batch norms", GUESSED, rests_on="3 to 20 traces", runs=3),
    Rule("spread_reduce", 0.22, LN, "reductions", GUESSED, rests_on="3 to 20 traces", runs=3),
    Rule("spread_attention", 0.24, LN, "attention", GUESSED, rests_on="3 to 20 traces", runs=3),
    Rule("spread_rows", 0.28, LN, "softmax, layer norm and losses, the row's length unknown", GUESSED,
         rests_on="6 traces; where a neighbour or the name tells it, half are within 3 %", runs=6),
    Rule("spread_dropout", 0.4, LN, "dropout", GUESSED, rests_on="1 trace", runs=1),
    Rule("spread_scatter", 0.3, LN, "scatters", GUESSED, rests_on="1 trace", runs=1),
))  # fmt: skip
"""Every rule. One without ``off`` never changes, so a module may read its value once, on import. How the work
of a backward lookup lies on its named kernels stands in `sizing.lookup_map`."""
