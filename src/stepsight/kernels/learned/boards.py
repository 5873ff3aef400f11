"""What boards keep up of their data-sheet arithmetic where their relatives' models do not show it.

A table fitted on one board speaks for others of its chip and, by relation, for other chips; their power
limits and fp32 units differ. A share scales the data-sheet arithmetic of such a board before it is asked
about; it is fitted on operators of real models measured on that very board, never on the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from stepsight.kernels.machine import Machine

FILE = "boards.json"

DUAL_ISSUE = frozenset({"ada", "hopper", "blackwell"})
"""Generations with 128 fp32 lanes per multiprocessor, whose peaks count two issues a clock; GA10x too."""
DUAL_ISSUE_BOARD = "H100-SXM-80G"
"""The board whose share stands for unmeasured ones of these: it is not bound by its power limit."""

UNLIMITED = {"A100-SXM4-40G": "A100-PCIE-80G", "A100-SXM4-80G": "A100-PCIE-80G"}
"""Boards with a higher power limit (400 W) than the measured one (300 W), which keeps up 0.9 of its peak."""

POWER_LIMITED = 0.7
"""Boards that keep up less than this of their fp32 peak are limited by power (L4, P4)."""

TENSOR_SHARES = {
    "L4": 0.44,  # 72 W, as L40S reaches 0.5 at 350 W: no measurement of its own
    "volta": 0.79,  # fp16 products of GPT layers on two V100s
    "turing": 0.93,  # the same on an RTX 2080 Ti
    "TITAN-RTX": 0.80,  # the same, at full rate under a limit of 280 W
    "T4": 0.80,  # at full rate under a limit of 70 W: no measurement of its own
    # bf16 GEMMs reach 620 of 1,307 TFLOP/s where H100's reach 720 of 989 (SemiAnalysis, "MI300X vs H100 vs
    # H200", December 2024): the clock falls under matrix load.
    "cdna3": 0.65,
}
"""The same for tensor cores, by board or generation."""


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
        if variant == "linear" or (single is not None and single.share < POWER_LIMITED):
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
