"""What each piece of a pipeline does with a micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.cut import Piece
from stepsight.workload.llm.embedding_and_head import embedding_work, head_work, mtp_work
from stepsight.workload.llm.layer import LayerWork, as_one_layer_sees, layer_work
from stepsight.workload.llm.work import Pass

Kind = tuple[bool, str]
"""Whether a layer has experts, and its only block in a hybrid model."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceWork:
    """A piece's passes, cut into runs of layers, and its parameters (without experts, and experts).

    ``forward`` and ``backward`` list runs in the order they are executed; each comes with the parameters it
    holds, which ZeRO-3 gathers before it and whose gradients are reduced after it.
    """

    forward: tuple[Run, ...]
    backward: tuple[Run, ...]
    parameters: float
    expert_parameters: float

    @property
    def ends(self) -> bool:
        """Whether it holds the embedding or the head."""
        return any(run.label in ("embedding", "head") for run in self.forward)

    @property
    def kept_bytes(self) -> float:
        """What one micro-batch keeps between the passes, without the head."""
        return sum(run.work.kept_bytes for run in self.forward if run.label != "head")

    @property
    def head_bytes(self) -> float:
        """What the head keeps: logits, whose backward pass follows at once."""
        return sum(run.work.kept_bytes for run in self.forward if run.label == "head")


@dataclass(frozen=True, slots=True)
class Run:
    """Some layers one after the other; ``experts``: of their parameters, those of experts."""

    label: str
    work: Pass
    parameters: float
    layers: int
    experts: float = 0.0


class Pieces:
    """Makes each distinct kind of piece once; ``runs``: into how many runs its layers are cut."""

    def __init__(self, c: LanguageConfig, runs: int) -> None:
        self.c, self.runs = c, runs
        self._seen = as_one_layer_sees(c)
        self._made: dict[tuple[object, ...], PieceWork] = {}

    def work(self, piece: Piece) -> PieceWork:
        """What a piece does; pieces with identical layers share it."""
        m, t = self.c.model, self.c.training
        kinds = tuple(m.layer_kind(i) for i in range(piece.start, piece.stop))
        key = (piece.layers, piece.encoder, kinds, piece.first, piece.last)
        if key not in self._made:
            again = t.recompute_layers or piece.layers
            self._made[key] = _assembled(self._seen, self.runs, piece, kinds, t.recompute, again)
        return self._made[key]


@lru_cache(maxsize=1024)
def _assembled(
    c: LanguageConfig, parts: int, piece: Piece, kinds: tuple[Kind, ...], recompute: str, again: int
) -> PieceWork:
    """A piece's passes in ``parts`` runs; ``kinds``: what its layers are; ``again``: this many are run
    again in the backward pass.

    Configurations that differ only in what no layer sees share it (`as_one_layer_sees`).
    """
    modes = [recompute if i < again else "none" for i in range(piece.layers)]
    encoder = _encoder_layers(c, modes[: piece.encoder])
    works = _layers(c, kinds, modes[piece.encoder :])
    runs: list[tuple[str, list[LayerWork]]] = []
    size = max(1, -(-len(works) // parts))
    for lo in range(0, len(works), size):
        last = piece.start + min(lo + size, len(works)) - 1
        runs.append((f"layers {piece.start + lo}–{last}", works[lo : lo + size]))
    if encoder:
        runs.insert(0, ("encoder", encoder))
    if piece.first:
        runs.insert(0, ("embedding", [embedding_work(c)]))
    if piece.last:
        head = head_work(c)
        extra = c.model.mtp_layers
        if extra:
            runs.append(("mtp", [mtp_work(c, recompute)] * extra))
        runs.append(("head", [head, *[replace(head, parameters=0.0)] * extra]))
    forward = tuple(_run(label, group, "forward") for label, group in runs)
    backward = tuple(_run(label, group, "backward") for label, group in reversed(runs))
    every = [w for _, group in runs for w in group]
    return PieceWork(
        forward, backward, sum(w.parameters for w in every), sum(w.expert_parameters for w in every)
    )


def _layers(c: LanguageConfig, kinds: Sequence[Kind], modes: Sequence[str]) -> list[LayerWork]:
    """Layers with and without experts; after an encoder they also attend to its output."""
    cross = c.model.encoder_layers > 0
    keys = list(zip(kinds, modes, strict=True))
    made = {
        (kind, mode): layer_work(c, experts=kind[0], cross=cross, recompute=mode, only=kind[1])
        for kind, mode in dict.fromkeys(keys)
    }
    return [made[key] for key in keys]


def _encoder_layers(c: LanguageConfig, modes: Sequence[str]) -> list[LayerWork]:
    encoder = replace(c, model=replace(c.model, causal=False, encoder_layers=0))
    made = {mode: layer_work(encoder, experts=False, recompute=mode) for mode in dict.fromkeys(modes)}
    return [made[mode] for mode in modes]


def _run(label: str, works: list[LayerWork], direction: str) -> Run:
    """Identical neighbours are counted instead of added up one by one."""
    total = Pass()
    for w, n in Counter(works).items():
        total += (w.forward if direction == "forward" else w.backward).times(n)
    experts = sum(w.expert_parameters for w in works)
    return Run(label, total, sum(w.parameters for w in works) + experts, len(works), experts)
