"""What a capturing process is asked to do, for which GPU, what it assumes, how it answers (records, as JSON),
and what it refuses with one line instead of capturing it wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any

import msgspec

from stepsight.capturing.step import ProgramRow, RankMemoryUse, Samples
from stepsight.errors import InputError
from stepsight.hardware.spec import GpuSpec

CUDNN_9 = 2, 4
"""The first torch that is built with cuDNN 9."""
_COMPILE = ("fused", "eager")
_RANGES = {"mask_share": (0, 1), "distinct_share": (0, 1), "expert_balance": (1, inf), "zipf": (0, inf)}


def older(torch: str, major: int, minor: int) -> bool:
    """Whether a version of torch comes before this one; no version is today's."""
    found = re.match(r"(\d+)\.(\d+)", torch)
    return found is not None and (int(found[1]), int(found[2])) < (major, minor)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """``mask_share``: elements that an unknown mask selects. ``distinct_share``: distinct values among
    unknown ones. ``expert_balance``: the largest expert's tokens over the mean. ``zipf``: skew of lookups
    into embedding tables, 0 for uniform. ``compile``: ``fused`` models what torch.compile fuses, ``eager``
    leaves compiled functions as they were captured. ``torch``: the version whose defaults and libraries the
    job runs with (1.12), today's by default."""

    mask_share: float = 0.5
    distinct_share: float = 0.5
    expert_balance: float = 1.0
    zipf: float = 0.0
    compile: str = "fused"
    torch: str = ""

    def older_than(self, major: int, minor: int) -> bool:
        """Whether the job runs with a torch before this version."""
        return older(self.torch, major, minor)

    @classmethod
    def read(cls, assignments: Iterable[str]) -> Assumptions:
        """From ``name=value`` as the command line gives them."""
        known = sorted(f.name for f in fields(cls))
        changed: dict[str, Any] = {}
        for text in assignments:
            name, _, value = text.partition("=")
            where = f"--assume {text}"
            if name not in known:
                raise InputError(where, f"no assumption is called {name!r}", f"one of {', '.join(known)}")
            if name == "compile" and value not in _COMPILE:
                raise InputError(where, f"must be one of {', '.join(_COMPILE)}")
            if name == "torch" and not re.fullmatch(r"\d+\.\d+(\.\d+)?", value):
                raise InputError(where, "is not a version", "write torch=1.12")
            changed[name] = _share(name, value, where) if name in _RANGES else value
        return cls(**changed)


def _share(name: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(where, "its value is not a number", f"write {name}=0.5") from None
    low, high = _RANGES[name]
    if not low <= value <= high:
        raise InputError(where, f"must lie between {low:g} and {high:g}")
    return value


class FakeGpu(msgspec.Struct, frozen=True):
    """The GPU that torch.cuda describes to the script."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    l2_bytes: int


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run ``script`` (a file, or a module with ``module``) as ``rank`` of ``world`` and write ``answer``.

    ``steps`` optimizer steps after ``warmup`` others are recorded as one program. ``exchange`` is the folder
    in which ranks leave messages for each other. ``parent`` is the process that asks; the work ends with it.
    """

    script: str
    arguments: list[str]
    gpu: FakeGpu
    world: int
    per_node: int
    module: bool = False
    warmup: int = 2
    steps: int = 1
    assume: list[str] = []
    rank: int = 0
    answer: str = ""
    exchange: str = ""
    parent: int = 0


class MessageGroup(msgspec.Struct, array_like=True):
    """Two places that exchange messages within a family of groups."""

    name: str
    family: str
    start: int
    end: int


class Answer(msgspec.Struct):
    """``stage`` is how far the process came: starting, running, captured, or why there is no step.

    ``needs`` is the rank that must be captured before this one.
    """

    stage: str
    problem: str = ""
    needs: int = -1
    program: ProgramRow | None = None
    groups: list[tuple[str, tuple[int, ...]]] = []
    messages: list[MessageGroup] = []
    memory: RankMemoryUse | None = None
    guessed: dict[str, int] = {}
    assumed: dict[str, int] = {}
    notes: list[str] = []
    torch: str = ""
    samples: Samples = Samples()
    seconds: float = 0.0


CAPABILITIES = {
    "pascal": (6, 0), "volta": (7, 0), "turing": (7, 5), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0),
    "blackwell": (10, 0),
}  # fmt: skip
"""Compute capability by architecture (NVIDIA's table). Boards of one architecture differ in the minor number
only, which none of torch's choices seen here asks for."""
DEFAULT_CAPABILITY = (8, 0)


def request(
    gpu: GpuSpec, script: str, arguments: Sequence[str] = (), *, world: int, per_node: int,
    module: bool = False, warmup: int = 2, steps: int = 1, assume: Sequence[str] = (),
) -> Request:  # fmt: skip
    """Capture a script (or module) on ``world`` ranks with a GPU each."""
    capability = CAPABILITIES.get(gpu.architecture, DEFAULT_CAPABILITY)
    fake = FakeGpu(gpu.name, capability, int(gpu.memory_bytes), gpu.sms, int(gpu.l2_mb * 2**20))
    return Request(
        script, list(arguments), fake, world, per_node, module, warmup, steps, list(assume)
    )  # fmt: skip


RECORD = "record a trace on a GPU instead and use stepsight predict --trace"

_NEEDS_VALUES = {
    "DynamicOutputShapeException": "makes a result whose size depends on values that only a GPU computes",
    "DataDependentOutputException": "needs values that only a GPU computes",
    "UnsupportedOperatorException": "has no rule that tells the sizes of its results without computing them",
    "FakeTensorDeviceMismatchError": "if it is no mistake of the script, an operator takes host tensors "
    "together with the GPU's in a way that cannot be captured",
    "UnsupportedFakeTensorException": "works on a kind of tensor that cannot be without data",
}
"""torch's own errors for operators that cannot run without data, by class name, and what they mean."""

_OWN_KERNELS = frozenset(
    ("triton", "flash_attn", "apex", "transformer_engine", "deepspeed", "xformers", "bitsandbytes",
     "mamba_ssm", "causal_conv1d", "fused_dense_lib", "amp_C", "pycuda", "cupy", "torch_scatter",
     "torch_sparse")
)  # fmt: skip
"""Packages whose kernels are their own: without a GPU they do not import, or do not say what they launch."""


class UnsupportedError(BaseException):
    """Ends the script; a BaseException, so that scripts do not catch it. The message is one line."""


def explained(error: BaseException) -> str:
    """One line for an error that means "cannot be captured"; empty for a script's own mistake."""
    for kind in type(error).__mro__:
        if kind.__name__ in _NEEDS_VALUES:
            called = str(error.args[0] if error.args else error).partition("\n")[0]
            return f"{called}: {_NEEDS_VALUES[kind.__name__]}; {RECORD}"
    text = str(error)
    if isinstance(error, NotImplementedError) and ("no fake impl" in text or "Could not run '" in text):
        called = text.partition(": ")[0] if "no fake impl" in text else text.split("'")[1]
        return f"{called}: cannot run without data; {RECORD}"
    if isinstance(error, NotImplementedError) and "SparseTensorImpl" in text:
        return f"sparse tensors: cannot be without data; {RECORD}"
    if isinstance(error, NotImplementedError) and "HigherOrderOperator" in text:
        called = text.partition("HigherOrderOperator ")[2].partition(" ")[0]
        return f"{called}: torch has no rule to run it under a recorder; {RECORD}"
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _OWN_KERNELS:
        return own_kernels(error.name or "")
    return ""


def own_kernels(what: str) -> str:
    """The refusal of a library or an extension."""
    return f"{what} brings GPU kernels of its own, which cannot be captured; {RECORD}"
