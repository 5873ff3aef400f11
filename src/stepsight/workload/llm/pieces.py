"""What each piece of a pipeline does with a micro-batch: embeddings, layers, final norm, head and loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from stepsight.dtypes import dtype_bytes
from stepsight.program.job import Kernel
from stepsight.program.variants import Role
from stepsight.workload.llm import operators as ops
from stepsight.workload.llm.block import Message, Pass, norm, shared_over
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.llm.layer import LayerWork, accumulate, as_one_layer_sees, layer_work
from stepsight.workload.llm.operators import ForwardBackward
from stepsight.workload.llm.pipeline import Piece

FROZEN = (Role.WGRAD, Role.ACCUMULATE)
"""Roles of kernels that frozen embeddings and heads do not need, nor the sums of rows' gradients."""


def embedding_work(c: LanguageConfig) -> LayerWork:
    """Token (and learned position) embeddings, or an image model's patches."""
    return _embedding_work(as_one_layer_sees(c))


@lru_cache(maxsize=128)
def _embedding_work(c: LanguageConfig) -> LayerWork:
    m, dtype, e = c.model, c.training.dtype, dtype_bytes(c.training.dtype)
    n, share = float(c.tokens), c.padded_vocab / c.layout.tensor
    if m.patches:
        both = ops.linear(dtype, dtype, n, m.hidden, m.patches, bias=True)
        parameters = float(m.patches * m.hidden)
        return LayerWork(Pass.of(both.forward, (), e * n * m.patches), Pass.of(both.backward), parameters)
    pick = Kernel.of("gather", dtype, rows=n, cols=m.hidden, table_rows=share)
    put = [
        Kernel.of("sort", "int64", elements=n),
        Kernel.of("scatter", dtype, rows=n, cols=m.hidden, table_rows=share),
    ]
    both = ForwardBackward([pick], put)
    parameters = share * m.hidden
    if m.positions == "learned":
        both += ops.residual(dtype, n * m.hidden, 0.0, fused=True)
        parameters += c.sequence * m.hidden
    if c.training.dropout:
        both += ForwardBackward(
            [Kernel.of("dropout", dtype, elements=n * m.hidden)],
            [ops.stream("mul", dtype, n * m.hidden, e + 1, e)],
            n * m.hidden,
        )
    both.backward += accumulate(c, parameters)
    both.backward = [k for k in both.backward if not (c.training.frozen and _of_weights(k))]
    messages = _summed(c, n * m.hidden)
    return LayerWork(Pass.of(both.forward, messages, both.kept_bytes), Pass.of(both.backward), parameters)


def head_work(c: LanguageConfig) -> LayerWork:
    """Final norm, logits and loss. A tied head holds its own copy where the first stage is another rank."""
    return _head_work(as_one_layer_sees(c))


@lru_cache(maxsize=128)
def _head_work(c: LanguageConfig) -> LayerWork:
    m, t, f, dtype = c.model, c.layout.tensor, c.framework, c.training.dtype
    e, n = dtype_bytes(dtype), float(c.tokens)
    both = norm(c, dtype)
    both.kept_bytes += e * n / shared_over(c) * m.hidden
    seen = float(c.micro_batch) if m.patches else n * c.training.loss_share
    share = c.padded_vocab / t
    both += ops.linear(c.training.wide_product, dtype, seen, share, m.hidden)
    messages: list[Message] = []
    backward: list[Message] = []
    if c.training.loss != "none":
        whole = f.gathers_logits and t > 1
        seen_vocab = c.padded_vocab if whole else share
        both += ops.loss(
            dtype,
            seen,
            seen_vocab,
            fused=f.fused_loss or c.training.compiled,
            split=(t > 1 or f.sharded_loss) and not whole,
        )
        for _ in range(f.loss_metrics):
            both += ops.loss_metric(dtype, seen, seen_vocab, wide=not c.training.master_weights)
        if whole:
            messages = [Message("tensor", "all_gather", e * seen * seen_vocab, dtype)]
        elif t > 1:
            messages = [Message("tensor", "all_reduce", 4 * n, "fp32")] * 3
    parameters = share * m.hidden
    both.backward += accumulate(c, parameters)
    both.backward = [k for k in both.backward if not (c.training.frozen and _of_weights(k))]
    if t > 1:
        bytes_ = e * n * m.hidden
        if c.layout.sequence_parallel:
            messages = [*messages, Message("tensor", "all_gather", bytes_, dtype)]
            backward = [
                Message("tensor", "all_gather", bytes_, dtype),
                Message("tensor", "reduce_scatter", bytes_, dtype),
            ]
        else:
            backward = [Message("tensor", "all_reduce", bytes_, dtype)]
    own = parameters if not (m.tied and c.layout.pipeline == 1) else 0.0
    return LayerWork(
        Pass.of(both.forward, messages, both.kept_bytes),
        Pass.of(both.backward, backward),
        own + m.hidden,
    )


def mtp_work(c: LanguageConfig, recompute: str) -> LayerWork:
    """A layer that predicts one more token: the next token's embedding and the hidden state, each normed, are
    projected together; then an ordinary layer. The head that follows is the model's own."""
    m, dtype, n = c.model, c.training.dtype, float(c.tokens)
    layer, table = layer_work(c, experts=m.experts is not None, recompute=recompute), embedding_work(c)
    both = ForwardBackward()
    for _ in range(2):
        both += ops.norm(m.norm, dtype, n, m.hidden, fused=c.training.fused_norm or c.training.compiled)
    both += ops.linear(dtype, dtype, n, m.hidden / c.layout.tensor, 2 * m.hidden)
    both.kept_bytes += 2 * dtype_bytes(dtype) * n * m.hidden
    return LayerWork(
        table.forward + Pass.of(both.forward, (), both.kept_bytes) + layer.forward,
        layer.backward + Pass.of(both.backward) + table.backward,
        layer.parameters + m.mtp_projection_parameters / c.layout.tensor,
        layer.expert_parameters,
    )


def _summed(c: LanguageConfig, elements: float) -> list[Message]:
    """Every tensor rank looks up the rows it holds; the results are summed."""
    if c.layout.tensor == 1:
        return []
    kind = "reduce_scatter" if c.layout.sequence_parallel else "all_reduce"
    return [Message("tensor", kind, dtype_bytes(c.training.dtype) * elements, c.training.dtype)]


def _of_weights(kernel: Kernel) -> bool:
    return kernel.kind.role in FROZEN or kernel.family in ("sort", "scatter")


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
        first, last = piece.start + lo, piece.start + min(lo + size, len(works)) - 1
        name = f"layer {first}" if first == last else f"layers {first}–{last}"
        runs.append((name, works[lo : lo + size]))
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
