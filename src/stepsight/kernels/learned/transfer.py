"""Which fitted models answer for a GPU: its own, its chip's, or those of its nearest relatives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from stepsight.constants import area
from stepsight.estimate import Source
from stepsight.hardware.gpus import find_gpu
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.learned.model import TENSOR_CORES, LearnedModel
from stepsight.kernels.machine import Machine, feeding_share

C = area("kernels")

FILE = "boards.json"

DUAL_ISSUE = frozenset({"ada", "hopper", "blackwell"})
"""Generations with 128 fp32 lanes per multiprocessor, whose peaks count two issues a clock; GA10x too."""
DUAL_ISSUE_BOARD = "H100-SXM-80G"
"""The board whose share stands for unmeasured ones of these: it is not bound by its power limit."""

UNLIMITED = {"A100-SXM4-40G": "A100-PCIE-80G", "A100-SXM4-80G": "A100-PCIE-80G"}
"""Boards with a higher power limit (400 W) than the measured one (300 W), which keeps up 0.9 of its peak."""


TENSOR_SHARES = C.by_name("TENSOR_SHARES")


@dataclass(frozen=True, slots=True)
class Board:
    """One board's share of its fp32 peak for one kind of GEMM, and what it was fitted on."""

    gpu: str
    variant: str
    share: float
    spread: float
    rows: int
    gmae: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Boards:
    """All measured boards."""

    known: tuple[Board, ...]

    def of(self, gpu: str, variant: str) -> Board | None:
        """What was measured of a board. A power limit binds batched products as it binds single ones."""
        name = UNLIMITED.get(gpu, gpu)
        mine = {board.variant: board for board in self.known if board.gpu == name}
        single = mine.get("linear")
        if variant == "linear" or (single is not None and single.share < C.POWER_LIMITED):
            return mine.get(variant) or single
        return mine.get(variant)

    def share(self, machine: Machine, dtype: str, variant: str) -> float:
        """What multiplies the data-sheet arithmetic of ``machine`` when relatives' models are asked."""
        if dtype not in ("fp32", "fp64"):
            return TENSOR_SHARES.get(machine.name, 1.0) * TENSOR_SHARES.get(machine.architecture, 1.0)
        board = self.of(machine.name, variant)
        if board is None and dual_issue(machine):
            board = self.of(DUAL_ISSUE_BOARD, variant)
        return 1.0 if board is None else board.share

    def spread(self, machine: Machine, dtype: str, variant: str) -> float | None:
        """How far a measured board's own operators scattered about its share."""
        board = self.of(machine.name, variant) if dtype == "fp32" else None
        return None if board is None else board.spread


def dual_issue(machine: Machine) -> bool:
    """Whether the fp32 peak counts two issues a clock."""
    return machine.architecture in DUAL_ISSUE or (machine.architecture == "ampere" and machine.gddr)


def save_boards(path: Path, boards: Iterable[Board]) -> None:
    records = [asdict(board) for board in boards]
    path.write_text(json.dumps({"format": 1, "boards": records}, indent=1, sort_keys=True) + "\n")


@lru_cache(maxsize=4)
def load_boards(path: Path) -> Boards:
    """The boards of one file; none where there is no such file."""
    if not path.is_file():
        return Boards(())
    return Boards(tuple(Board(**record) for record in json.loads(path.read_text())["boards"]))


RELATIVES = {"fp32": 2}
"""How many of the nearest measured GPUs stand in for an unmeasured one: two of the old and diverse
fp32 generations, else one. Chosen by leaving GPUs out."""

TRANSFER_SPREAD = C.by_name("TRANSFER_SPREAD")
UNSEEN_SHAPES = C.by_name("UNSEEN_SHAPES")

FP32_LANES = frozenset({"gemm", "conv"})
"""Families bound by arithmetic, whose boards' shares count."""
NO_BOARDS = Boards(())

FIRST_PRINCIPLES = frozenset({("fp32", "bmm")})
"""Products whose tile is known better than what carries over from another GPU's library."""


STAND_INS = {
    "fp16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
    "tf32": ("tf32", "bf16"),
    "fp64": ("fp64", "fp32"),
}
"""Whose efficiencies serve a dtype without tables: fp16 and bf16 run on the same units."""

ROW_FAMILIES = frozenset({"softmax", "layer_norm"})
"""Row-wise kernels compute in fp32 whatever they read: the fp32 tables serve all dtypes."""

DERIVED = {
    "conv_dgrad": ("conv", 0.9),
    "conv_wgrad": ("conv", 1.05),
}
"""Families timed as a multiple of another: the two gradients of a convolution
take 1.95 times its forward (median of 1,020 fp32 ResNet layers on V100, Megatron's layers), the
input's 0.9 (VGG training on H100, public traces)."""

THROTTLED = frozenset({"T4"})
"""Measured 25 % slow under its power limit: it speaks for its own generation and its sibling only."""
THROTTLED_SIBLINGS = frozenset({"volta", "turing"})
POWER_BOUND = frozenset({"L40S"})
"""Its large products reach 0.50 of peak at 350 W: its efficiencies state its power limit."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The models that answer, the machine figures to ask each with, and what to say about it.

    ``tiled``: first principles answer (`tiles`); the models' event path is that of the nearest GPU.
    ``start_us`` is added to what the models say. ``siblings`` are models of boards with the same chip and no
    faster memory: what they reach in training, this one reaches, too. The tables of H200 take 1.04 to 1.10
    times as long as those of H100 on large products (same chip and libraries, aiconfigurator-core): its
    memory leaves less of the same 700 W to the tensor cores. In training both are at that limit, which is
    counted apart (`simulate.sustained`).
    """

    models: tuple[LearnedModel, ...]
    machines: tuple[Machine, ...]
    source: Source
    spread: float
    note: str = ""
    factor: float = 1.0
    tiled: bool = False
    start_us: float = 0.0
    siblings: tuple[LearnedModel, ...] = ()

    def times(self, factor: float, note: str) -> Choice:
        """The same models for a family that takes ``factor`` times as long."""
        spread = float(np.hypot(self.spread, C.DERIVED_SPREAD))
        notes = "; ".join(filter(None, (note, self.note)))
        return replace(self, source=Source.TRANSFERRED, spread=spread, note=notes, factor=factor)


def choose(
    models: Sequence[LearnedModel],
    spec: GpuSpec,
    family: str,
    dtype: str,
    variant: str,
    boards: Boards = NO_BOARDS,
    *,
    at_own_clock: bool = False,
) -> Choice | None:
    """The best models among ``models`` for kernels of one family, dtype and variant."""
    if family in DERIVED:
        base, times = DERIVED[family]
        found = choose(models, spec, base, dtype, variant, boards, at_own_clock=at_own_clock)
        return found and found.times(times, f"taken as {times:g} times as long as the forward {base}")
    serving = STAND_INS.get(dtype, (dtype,))
    for stand_in in (*serving, "fp32") if family in ROW_FAMILIES else serving:
        fitting = [m for m in models if m.family == family and m.dtype == stand_in]
        exact = [m for m in fitting if m.variant == variant]
        fitting = exact or [m for m in fitting if m.variant in ("", "linear")] or fitting
        if fitting:
            same = stand_in == dtype
            return _choice(fitting, spec, dtype, boards, same_dtype=same, at_own_clock=at_own_clock)
    return None


def _choice(
    fitting: Sequence[LearnedModel], spec: GpuSpec, dtype: str, boards: Boards, *, same_dtype: bool,
    at_own_clock: bool,
) -> Choice:  # fmt: skip
    mine = Machine.of(spec, dtype)
    own = sorted(
        (m for m in fitting if m.machine.same_chip(mine)),
        key=lambda m: (m.machine.name != mine.name, abs(m.machine.memory_gbps - mine.memory_gbps)),
    )
    same_units = (
        same_dtype or {dtype, fitting[0].dtype} == {"fp16", "bf16"} or fitting[0].family in ROW_FAMILIES
    )
    if own and same_units:
        spread = own[0].spread if same_dtype else float(np.hypot(own[0].spread, C.OTHER_DTYPE_SPREAD))
        if own[0].machine.name == mine.name or own[0].family not in FP32_LANES:
            siblings = tuple(m for m in own[1:] if m.machine.memory_gbps <= mine.memory_gbps)
            machine = own[0].machine.with_memory_of(mine)
            if own[0].dtype in TENSOR_CORES and mine.tflops < machine.tflops:  # a board with lower clocks
                return Choice((own[0],), (replace(machine, tflops=mine.tflops),), Source.LEARNED, spread)
            return Choice(
                (own[0],), (machine,), Source.LEARNED, spread,
                siblings=siblings if own[0].dtype in TENSOR_CORES else (),
            )  # fmt: skip
        return _sibling(own[0], mine, dtype, boards, spread, at_own_clock=at_own_clock)
    ranked = sorted(_relatives(fitting, spec, mine), key=lambda m: m.machine.distance(mine))
    nearest = tuple(ranked[: RELATIVES.get(fitting[0].dtype, 1)])
    variant = nearest[0].variant
    if nearest[0].family in FP32_LANES:
        feeding = feeding_share(spec, dtype) / feeding_of(nearest[0])
        mine = _scaled(mine, boards.share(mine, nearest[0].dtype, variant) * feeding)
    base = TRANSFER_SPREAD.get(fitting[0].family, C.USUAL_TRANSFER_SPREAD)
    measured = boards.spread(mine, nearest[0].dtype, variant) if nearest[0].family == "gemm" else None
    spread = base + C.SPREAD_PER_DISTANCE * nearest[0].machine.distance(mine)
    if nearest[0].family == "gemm" and nearest[0].dtype in TENSOR_CORES and feeding_share(spec, dtype) > 1:
        spread = C.SAME_FEEDING_SPREAD
    if measured is not None:
        spread = float(np.hypot(measured, UNSEEN_SHAPES.get(variant, base)))
    tiled = (nearest[0].dtype, variant) in FIRST_PRINCIPLES
    names = " and ".join(dict.fromkeys(m.machine.name for m in nearest))
    fitted = nearest[0].dtype
    note = f"model of {names} ({fitted}), scaled to this GPU"
    if names == mine.name and fitted != dtype:
        note = f"model fitted on {fitted}, scaled to {dtype}"
    return Choice(
        nearest,
        (mine,) * len(nearest),
        Source.TRANSFERRED,
        spread,
        "whole tiles at the GPU's own peak" if tiled else note,
        tiled=tiled,
        start_us=C.AMD_GEMM_START_US if spec.vendor == "amd" and nearest[0].family == "gemm" else 0.0,
    )


def _relatives(fitting: Sequence[LearnedModel], spec: GpuSpec, mine: Machine) -> Sequence[LearnedModel]:
    """Models of other chips that may answer: none of a board that its power limit holds back, and of tensor
    cores those that are fed in the same way."""
    free = [m for m in fitting if m.machine.name not in THROTTLED or mine.architecture in THROTTLED_SIBLINGS]
    if fitting[0].dtype in TENSOR_CORES:
        free = [m for m in fitting if m.machine.name not in POWER_BOUND]
        if spec.vendor == "nvidia":
            free = [m for m in free if m.machine.wide == mine.wide] or free
    return free or fitting


def feeding_of(model: LearnedModel) -> float:
    """`feeding_share` of the board that a model was fitted on."""
    entry = find_gpu(model.machine.name) if model.dtype in TENSOR_CORES else None
    return feeding_share(entry.gpu, model.dtype) if entry is not None else 1.0


def _sibling(
    model: LearnedModel, mine: Machine, dtype: str, boards: Boards, spread: float, *, at_own_clock: bool
) -> Choice:
    """Another board of the chip that was measured: its own memory, and its share of the peak where that is
    known; else its own clock, unless the measured board ran at its power limit."""
    if dtype != "fp32":
        return Choice((model,), (model.machine.with_memory_of(mine),), Source.LEARNED, spread)
    board = boards.of(mine.name, model.variant)
    tflops = model.machine.tflops * (1.0 if board is None else board.share)
    if at_own_clock and board is None and model.machine.name not in THROTTLED:
        tflops = mine.tflops
    scaled = replace(model.machine.with_memory_of(mine), tflops=tflops)
    note = f"measured on {model.machine.name}, another board of the chip"
    return Choice((model,), (scaled,), Source.LEARNED, float(np.hypot(spread, C.SIBLING_SPREAD)), note)


def _scaled(machine: Machine, share: float) -> Machine:
    return replace(machine, tflops=machine.tflops * share)
