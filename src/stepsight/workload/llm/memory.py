"""What each stage of a language model's training must hold at its fullest."""

from __future__ import annotations

from functools import lru_cache

from stepsight.constants import area
from stepsight.dtypes import dtype_bytes
from stepsight.workload.llm.config import FROZEN_BYTES, LanguageConfig
from stepsight.workload.llm.emission import owned
from stepsight.workload.llm.layer import layer_work
from stepsight.workload.llm.pieces import Pieces, PieceWork
from stepsight.workload.llm.pipeline import Piece, pieces
from stepsight.workload.memory import MemoryReport, RankMemory
from stepsight.workload.operators.optimizers import UPDATES

C = area("language")


def language_memory(c: LanguageConfig) -> MemoryReport:
    """Every rank of a stage holds the same."""
    held = stage_memory(c)
    stride, n = c.layout.stride("pipeline"), c.layout.pipeline
    return MemoryReport(tuple(held[(rank // stride) % n] for rank in range(c.ranks)))


@lru_cache(maxsize=16)
def stage_memory(c: LanguageConfig) -> tuple[RankMemory, ...]:
    """What a rank of each stage holds."""
    maker = Pieces(c, 1)
    parts = pieces(c)
    stages = [[(p, maker.work(p)) for p in parts[s :: c.layout.pipeline]] for s in range(c.layout.pipeline)]
    return tuple(_stage(c, s, works) for s, works in enumerate(stages))


def _stage(c: LanguageConfig, stage: int, works: list[tuple[Piece, PieceWork]]) -> RankMemory:
    s, t = c.layout, c.training
    parameters = sum(w.parameters + w.expert_parameters for _, w in works)
    ends = sum(run.parameters for _, w in works for run in w.forward if run.label in ("embedding", "head"))
    share = s.sharded_over
    wide = c.framework.gradients == "fp32" or not t.half
    stored = parameters / (share if s.zero == 3 else 1)
    gradients = stored * (4 if wide else 2) / (share if s.zero == 2 else 1)
    if wide and t.half and s.data * s.context > 1 and not c.framework.wgrad_accumulates:
        gradients += stored * 2  # buckets between replicas; a single one adds to the fp32 ones and drops them
    mine = owned(c, sum(w.parameters for _, w in works), sum(w.expert_parameters for _, w in works))
    optimizer = mine * t.state_bytes * UPDATES[t.optimizer]
    if t.copies_weights:
        optimizer += mine * 4
    if t.offload == "optimizer":
        optimizer = 0.0
    gradients, optimizer = gradients * c.trained_share, optimizer * c.trained_share
    whole, some = _gathered_parameters(c, works)
    activations = sum(in_flight(c, stage, piece) * w.kept_bytes + w.head_bytes for piece, w in works)
    temporary = _temporary(c, works) + some
    weights = stored * _weight_bytes(c, ends / parameters if parameters else 0.0)
    lost = C.FRAGMENTED_EXPANDABLE if t.expandable_segments else C.FRAGMENTED
    returned = 0.0 if t.expandable_segments else C.ALLOCATOR_OVERHEAD - C.FRAGMENTED
    return RankMemory(
        parameters=weights + whole,
        gradients=gradients,
        optimizer_state=optimizer,
        activations=activations,
        temporary=temporary,
        context=C.CONTEXT_BYTES,
        cached=lost * (activations + temporary),
        reclaimable=_pending_gather_bytes(c, stage, works) + returned * (activations + temporary),
    )


def _weight_bytes(c: LanguageConfig, ends: float) -> float:
    """Bytes of a weight where it is stored; ``ends``: the share of embedding and head, which stay in half
    precision where layers are in fewer bits, or are cast to fp32 (PEFT). In fp8 training a weight is there
    with its transpose in fp8, next to the bf16 one unless weights are kept in fp8."""
    t = c.training
    half = float(dtype_bytes(t.dtype) if t.master_weights or not t.half or t.frozen else 4)
    if t.frozen:
        half = 4.0 if t.frozen_weights == "nf4" and c.framework.widens_ends else half
        return ends * half + (1 - ends) * FROZEN_BYTES.get(t.frozen_weights, half)
    if t.quantised and c.layout.micro_batches > 1 and not t.fp8_weights:
        return half + (1 - ends) * 2
    return half


def _gathered_parameters(c: LanguageConfig, works: list[tuple[Piece, PieceWork]]) -> tuple[float, float]:
    """ZeRO-3: whole parameters next to a rank's share of them. Those of all layers stay from the forward to
    the backward pass where nothing is resharded (the first figure); else two layers' are there at a time."""
    if c.layout.zero < 3:
        return 0.0, 0.0
    if not c.layout.reshard:
        each = dtype_bytes(c.training.dtype)
        return sum(each * (w.parameters + w.expert_parameters) for _, w in works), 0.0
    largest = max((run.parameters for _, w in works for run in w.forward), default=0.0)
    return 0.0, 2 * 2 * largest / _runs(c)


def _pending_gather_bytes(c: LanguageConfig, stage: int, works: list[tuple[Piece, PieceWork]]) -> float:
    """Gathered inputs that wait for the communication stream, where the host runs ahead of the device.

    It runs ahead as far as its launch queue reaches: without a pipeline always, in a pipeline where nothing
    is received, which is the first stage's way through its first micro-batches. A single micro-batch has no
    other after it.
    """
    if not _gathers(c) or stage:
        return 0.0
    piece, s = works[0][0], c.layout
    ahead = C.QUEUED_LAYERS
    if s.micro_batches == 1:
        ahead = min(ahead, piece.layers)
    elif s.pipeline > 1:
        ahead = min(ahead, piece.layers * max(0.0, in_flight(c, stage, piece) - 2))
    return ahead * _gathered_bytes(c)


def _gathers(c: LanguageConfig) -> bool:
    return c.framework.gathers_pile_up and c.layout.tensor > 1 and c.layout.sequence_parallel


def _gathered_bytes(c: LanguageConfig) -> float:
    """What the gathered inputs of a layer hold beyond a rank's own share of them."""
    return 2 * dtype_bytes(c.training.dtype) * c.tokens * c.model.hidden * (1 - 1 / c.layout.tensor)


def _runs(c: LanguageConfig) -> int:
    return max(1, c.model.layers // c.layout.chunks)


def in_flight(c: LanguageConfig, stage: int, piece: Piece) -> float:
    """Micro-batches of a piece between their forward and their backward pass.

    In zero-bubble until their weights' gradients, of which a stage delays as many as there are stages before
    it (ZB-H1; Qi et al. 2023).
    """
    s = c.layout
    if s.schedule == "afab":
        return s.micro_batches
    if s.schedule == "interleaved":
        warmup = (s.pipeline - stage - 1) * 2 + (s.virtual_stages - 1) * s.pipeline + 1
        return min(warmup / s.virtual_stages, s.micro_batches)
    delayed = stage if s.schedule == "zero_bubble" else 0
    return min(s.pipeline - stage + delayed, s.micro_batches)


def _temporary(c: LanguageConfig, works: list[tuple[Piece, PieceWork]]) -> float:
    """The largest moment of a backward pass: a layer run again with its gradients, or the logits'."""
    m, e, t = c.model, dtype_bytes(c.training.dtype), c.layout.tensor
    inner = (2 if m.gated else 1) * m.ffn
    layer = e * c.tokens * (2 * inner + 4 * m.hidden) / t
    if c.training.recompute == "full":
        whole = layer_work(c, experts=False, recompute="none").forward.kept_bytes
        layer += whole
    scored = any(piece.last for piece, _ in works) and c.training.loss != "none"
    return max(layer, _loss_bytes(c) if scored else 0.0)


def _loss_bytes(c: LanguageConfig) -> float:
    """Of the logits and their gradients, what the loss needs next to what it keeps."""
    f, e, t = c.framework, dtype_bytes(c.training.dtype), c.layout.tensor
    split = (t > 1 or f.sharded_loss) and not f.gathers_logits
    wide = e + (0 if f.sharded_loss else 4)  # the gradient takes the place of the probabilities
    if f.fused_loss or c.training.compiled:
        wide = e if f.half_loss else 4  # the gradient
    elif not split:
        wide = 8  # gradients before and after the softmax, next to its result
    if f.gathers_logits and t > 1:
        wide += 3 * e  # what the others sent, and both gradients of putting it together
    seen = c.micro_batch if c.model.patches else c.tokens * c.training.loss_share
    return float(seen * c.padded_vocab / (1 if f.gathers_logits else t) * wide)
