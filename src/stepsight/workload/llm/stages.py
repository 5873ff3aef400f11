"""Which layers each piece of a pipeline holds, and what it does with a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.embedding_and_head import embedding_work, head_work
from stepsight.workload.llm.layer import LayerWork, as_one_layer_sees, layer_work
from stepsight.workload.llm.work import Pass


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers ``start`` to ``stop`` and, at the ends, the embedding and the head."""

    start: int
    stop: int
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        return self.stop - self.start


def pieces(c: LanguageConfig) -> list[Piece]:
    """The model cut into stages times virtual stages, first piece first.

    nanotron weighs layers and head by their cost (`_by_cost`). Others cut evenly where that divides. Else, as
    Megatron does on request: where it divides with embedding and head counted as a layer each, both ends
    hold one layer less; otherwise the first piece holds the fewest, and the remainder goes to the pieces
    after it, one layer each (31 layers in 4 pieces: 7, 8, 8, 8, the embedding counted as a layer).
    """
    n, layers = c.layout.chunks, c.model.layers
    if n == 1:
        return [Piece(0, layers, True, True)]
    if c.framework.stages_by_cost:
        counts = _by_cost(c)
    elif layers % n == 0:
        counts = [layers // n] * n
    elif (layers + 2) % n == 0:
        each = (layers + 2) // n
        counts = [each - 1, *[each] * (n - 2), each - 1]
    else:
        counts = [layers // n + (0 < i <= layers % n) for i in range(n)]
    starts = [sum(counts[:i]) for i in range(n + 1)]
    return [Piece(starts[i], starts[i + 1], i == 0, i == n - 1) for i in range(n)]


def _by_cost(c: LanguageConfig) -> list[int]:
    """nanotron's rule: blocks in order, the next stage once the running cost exceeds its share.

    A layer costs its parameters in products, the head its own, the embedding nothing.
    """
    m, n = c.model, c.layout.chunks
    layer = 4 * m.heads * m.head_dim * m.hidden + (3 if m.gated else 2) * m.ffn * m.hidden
    costs = [0, *[layer] * m.layers, 0, m.vocab * m.hidden]
    total, counts = sum(costs), [0] * n
    stage, running = 0, 0
    for i, cost in enumerate(costs):
        running += cost
        if 1 <= i <= m.layers:
            counts[stage] += 1
        if stage < n - 1 and running >= total * (stage + 1) / n:
            stage += 1
    return counts


@dataclass(frozen=True, slots=True)
class PieceWork:
    """A piece's passes, cut into runs of layers, and its parameters (without experts, and experts).

    ``forward`` and ``backward`` list runs in the order they are executed; each comes with the parameters it
    holds, which ZeRO-3 gathers before it and whose gradients are reduced behind it.
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
        """What one micro-batch keeps between the passes."""
        return sum(run.work.kept_bytes for run in self.forward)


@dataclass(frozen=True, slots=True)
class Run:
    """Some layers one behind the other; ``experts``: of their parameters, those of experts."""

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
        self._made: dict[tuple[int, int, int, bool, bool], PieceWork] = {}

    def work(self, piece: Piece) -> PieceWork:
        """What a piece does; pieces with alike layers share it."""
        m, t = self.c.model, self.c.training
        kinds = tuple(m.has_experts(i) for i in range(piece.start, piece.stop))
        key = (piece.layers, sum(kinds), int(kinds[0]) if kinds else 0, piece.first, piece.last)
        if key not in self._made:
            again = t.recompute_layers or piece.layers
            self._made[key] = _assembled(self._seen, self.runs, piece, kinds, t.recompute, again)
        return self._made[key]


@lru_cache(maxsize=1024)
def _assembled(
    c: LanguageConfig, parts: int, piece: Piece, kinds: tuple[bool, ...], recompute: str, again: int
) -> PieceWork:
    """A piece's passes in ``parts`` runs; ``kinds``: which layers hold experts; ``again``: so many are run
    again in the backward pass.

    Configurations that differ only in what no layer sees share it (`as_one_layer_sees`).
    """
    cross = c.model.encoder_layers > 0
    layers = {
        key: layer_work(c, experts=key[0], cross=cross, recompute=key[1])
        for key in {(e, recompute if i < again else "none"): None for i, e in enumerate(kinds)}
    }
    works = [layers[e, recompute if i < again else "none"] for i, e in enumerate(kinds)]
    runs: list[tuple[str, list[LayerWork]]] = []
    size = max(1, -(-len(works) // parts))
    for lo in range(0, len(works), size):
        last = piece.start + min(lo + size, len(works)) - 1
        runs.append((f"layers {piece.start + lo}–{last}", works[lo : lo + size]))
    if c.model.encoder_layers and piece.first:
        encoder = replace(c, model=replace(c.model, causal=False, encoder_layers=0))
        one = layer_work(encoder, experts=False, recompute=recompute)
        runs.insert(0, ("encoder", [one] * c.model.encoder_layers))
    if piece.first:
        runs.insert(0, ("embedding", [embedding_work(c)]))
    if piece.last:
        runs.append(("head", [head_work(c)]))
    forward = tuple(_run(label, group, "forward") for label, group in runs)
    backward = tuple(_run(label, group, "backward") for label, group in reversed(runs))
    every = [w for _, group in runs for w in group]
    return PieceWork(
        forward, backward, sum(w.parameters for w in every), sum(w.expert_parameters for w in every)
    )


def _run(label: str, works: list[LayerWork], direction: str) -> Run:
    """Alike neighbours are counted instead of added up one by one."""
    total = Pass()
    counted: dict[int, tuple[LayerWork, int]] = {}
    for w in works:
        counted[id(w)] = (w, counted.get(id(w), (w, 0))[1] + 1)
    for w, n in counted.values():
        total += (w.forward if direction == "forward" else w.backward).times(n)
    experts = sum(w.expert_parameters for w in works)
    return Run(label, total, sum(w.parameters for w in works) + experts, len(works), experts)
