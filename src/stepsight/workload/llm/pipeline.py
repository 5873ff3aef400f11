"""A pipeline: which layers each piece of a model holds, and in which order its stages work on them.

An item is a pass (forward F, backward B; with zero-bubble B gives only the input's gradient and W the
weights') of one micro-batch over one piece of the model. `orders` lists the items of each stage (all forward
first, 1F1B, interleaved, zero-bubble); `exchanges` puts messages between them such that no two stages wait
for each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepsight.workload.llm.config import LanguageConfig


ENDS = 2
"""Embedding and head: each may be a piece of its own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers ``start`` to ``stop`` and, at the ends, the embedding and the head; ``encoder``: layers of an
    encoder, in front of them."""

    start: int
    stop: int
    first: bool
    last: bool
    encoder: int = 0

    @property
    def layers(self) -> int:
        """Those of the encoder, too."""
        return self.encoder + self.stop - self.start


def most_pieces(c: LanguageConfig) -> int:
    """A layer each, and the embedding and the head by themselves (Meta's Llama 3 405B: 126 layers in 128)."""
    return c.model.encoder_layers + c.model.layers + ENDS


def pieces(c: LanguageConfig) -> list[Piece]:
    """The model cut into stages times virtual stages, first piece first.

    nanotron weighs layers and head by their cost (`_by_cost`). Others cut evenly where that divides. Else, as
    Megatron does on request: where it divides with embedding and head counted as a layer each, both ends
    hold one layer less; otherwise the first piece holds the fewest, and the remainder goes to the pieces
    after it, one layer each (31 layers in 4 pieces: 7, 8, 8, 8, the embedding counted as a layer). An encoder
    and its decoder lie on pieces of their own (`_encoder_pieces`).
    """
    n, m = c.layout.chunks, c.model
    if n == 1:
        return [Piece(0, m.layers, True, True, m.encoder_layers)]
    if not m.encoder_layers:
        even = _before_mtp(m.layers, m.mtp_layers, n) if m.mtp_layers else _even(m.layers, n)
        counts = _by_cost(c) if c.framework.stages_by_cost else even
        return _one_behind_the_other([0] * n, counts)
    k = _encoder_pieces(c)
    return _one_behind_the_other(
        [*_shared_out(m.encoder_layers, k), *[0] * (n - k)], [*[0] * k, *_shared_out(m.layers, n - k)]
    )


def tensors_between(c: LanguageConfig) -> list[int]:
    """Hidden states that each stage sends to the next one; between stages of a decoder its encoder's output
    goes along."""
    parts = pieces(c)[: c.layout.pipeline]
    return [2 if c.model.encoder_layers and piece.stop > piece.start else 1 for piece in parts]


def _one_behind_the_other(encoder: list[int], counts: list[int]) -> list[Piece]:
    n = len(counts)
    starts = [sum(counts[:i]) for i in range(n + 1)]
    return [Piece(starts[i], starts[i + 1], i == 0, i == n - 1, encoder[i]) for i in range(n)]


def _even(layers: int, n: int) -> list[int]:
    if layers % n == 0:
        return [layers // n] * n
    if (layers + ENDS) % n == 0:
        each = (layers + ENDS) // n
        return [each - 1, *[each] * (n - 2), each - 1]
    return [layers // n + (0 < i <= layers % n) for i in range(n)]


def _before_mtp(layers: int, mtp_layers: int, n: int) -> list[int]:
    """The last piece also holds the layers that predict further tokens and a head for each, each counted as a
    layer: it gets as many ordinary ones as make the fullest piece the least full (Megatron's layouts of
    DeepSeek-V3: fifteen times 4 and 1 in 16 pieces; 1, thirty times 2 and 0 in 32)."""
    ends = 2 * mtp_layers + 1

    def fullest(last: int) -> int:
        return max(-(-(layers - last) // (n - 1)), last + ends)

    last = min(range(layers // n + 1), key=fullest)
    each, more = divmod(layers - last, n - 1)
    return [*(each + (0 < i <= more) for i in range(n - 1)), last]


def _shared_out(layers: int, n: int) -> list[int]:
    return [layers // n + (i < layers % n) for i in range(n)]


def _encoder_pieces(c: LanguageConfig) -> int:
    """Of the pieces, those that hold the encoder (Megatron's split rank): this many that the fullest piece
    costs the least. A layer of the decoder also attends to the encoder's output."""
    m, n = c.model, c.layout.chunks
    layer = m.attention_parameters + m.mlp_parameters
    ends = m.vocab * m.hidden

    def fullest(k: int) -> int:
        decoder = [x * (layer + m.attention_parameters) for x in _shared_out(m.layers, n - k)]
        decoder[-1] += ends
        return max(*decoder, *(x * layer for x in _shared_out(m.encoder_layers, k)))

    return min(range(1, n), key=fullest)


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
class Item:
    """A pass of a micro-batch over a piece: ``kind`` F, B or W; ``piece`` counts through the whole model."""

    kind: str
    piece: int
    micro_batch: int


def orders(schedule: str, stages: int, micro_batches: int, virtual: int = 1) -> list[list[Item]]:
    """The items of each stage in the order it works on them."""
    if schedule == "afab":
        return [_afab(s, micro_batches) for s in range(stages)]
    if schedule == "interleaved" and virtual > 1:
        return [_interleaved(s, stages, micro_batches, virtual) for s in range(stages)]
    plain = [_one_f_one_b(s, stages, micro_batches) for s in range(stages)]
    return (
        [_with_late_weights(order, s) for s, order in enumerate(plain)]
        if schedule == "zero_bubble"
        else plain
    )


def _afab(stage: int, m: int) -> list[Item]:
    return [*(Item("F", stage, i) for i in range(m)), *(Item("B", stage, i) for i in range(m))]


def _one_f_one_b(stage: int, stages: int, m: int) -> list[Item]:
    warmup = min(stages - 1 - stage, m)
    items = [Item("F", stage, i) for i in range(warmup)]
    for i in range(m - warmup):
        items += [Item("F", stage, warmup + i), Item("B", stage, i)]
    return [*items, *(Item("B", stage, i) for i in range(m - warmup, m))]


def _with_late_weights(order: list[Item], stage: int) -> list[Item]:
    """Zero-bubble (ZB-H1): weight gradients of the first ``stage`` micro-batches wait for later gaps."""
    items: list[Item] = []
    waiting: list[Item] = []
    for item in order:
        items.append(item)
        if item.kind != "B":
            continue
        waiting.append(Item("W", item.piece, item.micro_batch))
        if len(waiting) > stage:
            items.append(waiting.pop(0))
    return [*items, *waiting]


def _interleaved(stage: int, stages: int, m: int, virtual: int) -> list[Item]:
    """Megatron's order: groups of ``stages`` micro-batches pass through one piece after the other."""
    total = m * virtual
    warmup = min((stages - stage - 1) * 2 + (virtual - 1) * stages, total)

    def item(k: int, kind: str) -> Item:
        group, inside = divmod(k, stages * virtual)
        size = min(stages, m - group * stages)
        chunk, micro = divmod(inside, size) if size else (0, 0)
        chunk = min(chunk, virtual - 1)
        piece = chunk if kind == "F" else virtual - 1 - chunk
        return Item(kind, piece * stages + stage, group * stages + micro)

    items = [item(k, "F") for k in range(warmup)]
    for k in range(total - warmup):
        items += [item(warmup + k, "F"), item(k, "B")]
    return [*items, *(item(k, "B") for k in range(total - warmup, total))]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message of an item's result to the stage that holds the next piece."""

    item: Item
    source: int
    target: int


Event = Item | Exchange


def exchanges(order: list[list[Item]], pieces: int) -> list[list[Event]]:
    """Each stage's items with its messages, sent and received, between them."""
    return [[event for _, event in stage] for stage in timed_exchanges(order, pieces)]


def timed_exchanges(order: list[list[Item]], pieces: int) -> list[list[tuple[float, Event]]]:
    """The same with the time of each event, a backward pass taking twice as long as any other.

    Both ends of a message must come to it in the same order as to their other messages. Walking the
    schedule with equal times for all passes gives one order of all events; each stage's list follows it.
    """
    stages = len(order)
    done: dict[Item, float] = {}
    free, at = [0.0] * stages, [0] * stages
    events: list[list[tuple[float, int, str, int, Event]]] = [[] for _ in range(stages)]
    left = sum(len(items) for items in order)
    while left:
        moved = False
        for s in range(stages):
            while at[s] < len(order[s]):
                item = order[s][at[s]]
                needs = _needs(item, pieces)
                if any(n not in done for n in needs):
                    break
                begin = max([free[s], *(done[n] for n in needs)])
                end = begin + (2.0 if item.kind == "B" else 1.0)
                done[item], free[s] = end, end
                events[s].append((begin, 1, item.kind, item.piece, item))
                target = _target(item, pieces)
                if target is not None and target % stages != s:
                    message = Exchange(item, s, target % stages)
                    for stage in (s, target % stages):
                        events[stage].append((end, 0, item.kind, item.piece, message))
                at[s] += 1
                left -= 1
                moved = True
        if not moved:
            raise ValueError("the schedule waits for itself")
    return [[(event[0], event[-1]) for event in sorted(one, key=lambda e: e[:4])] for one in events]


def _needs(item: Item, pieces: int) -> list[Item]:
    """What must be done before an item: its neighbour's pass, and its own forward pass."""
    if item.kind == "F":
        return [Item("F", item.piece - 1, item.micro_batch)] if item.piece else []
    if item.kind == "W":
        return [Item("B", item.piece, item.micro_batch)]
    own = Item("F", item.piece, item.micro_batch)
    return [own] if item.piece == pieces - 1 else [own, Item("B", item.piece + 1, item.micro_batch)]


def _target(item: Item, pieces: int) -> int | None:
    """The piece that an item's result goes to."""
    if item.kind == "F":
        return item.piece + 1 if item.piece < pieces - 1 else None
    return item.piece - 1 if item.kind == "B" and item.piece > 0 else None


PERIODS = {"1f1b": 3.0, "zero_bubble": 4.0, "interleaved": 3.0}
"""How long a micro-batch takes in the steady part of a schedule, in units of a forward pass."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Blocks of a pipeline's schedule that repeat.

    ``starts``: by stage, at which event each block begins, and last where they end. ``skipped``: how many
    more blocks like them the whole schedule has; ``group``: the micro-batches of a block.
    """

    starts: tuple[tuple[int, ...], ...]
    skipped: int
    group: int


def micro_batches_listed(schedule: str, stages: int, micro_batches: int, virtual: int, blocks: int) -> int:
    """As few micro-batches as show the filling, this many blocks that repeat, and the draining."""
    group = _group(schedule, stages, virtual)
    if schedule not in PERIODS:
        return micro_batches
    few = (3 * stages if group > 1 else 3 * stages + 2) + group * blocks
    return min(micro_batches, few + (micro_batches - few) % group)


def steady_blocks(
    lists: list[list[tuple[float, Event]]], schedule: str, virtual: int, listed: int, micro_batches: int,
    special: int,
) -> Steady | None:  # fmt: skip
    """The longest run of blocks that repeat in every stage; None where fewer than three do.

    Blocks are cut at common times, so that both ends of a message lie in blocks of the same number. The first
    and last ``special`` micro-batches differ from the others.
    """
    stages = len(lists)
    group = _group(schedule, stages, virtual)
    if listed == micro_batches or schedule not in PERIODS:
        return None
    period = PERIODS[schedule] * group * (virtual if group > 1 else 1)
    end = max(stage[-1][0] for stage in lists)
    begin = 0.0
    while begin < end - 3 * period:
        count = _identical_blocks(lists, begin, period, group, (special, listed - special))
        if count >= 3:
            cuts = [begin + k * period for k in range(count + 1)]
            starts = tuple(tuple(_first(stage, cut) for cut in cuts) for stage in lists)
            return Steady(starts, (micro_batches - listed) // group, group)
        begin += 1.0
    return None


def _group(schedule: str, stages: int, virtual: int) -> int:
    """Micro-batches of a block."""
    return stages if schedule == "interleaved" and virtual > 1 else 1


def _first(stage: list[tuple[float, Event]], time: float) -> int:
    return next((i for i, (at, _) in enumerate(stage) if at >= time), len(stage))


def _identical_blocks(
    lists: list[list[tuple[float, Event]]], begin: float, period: float, group: int, usual: tuple[int, int]
) -> int:
    """How many blocks from a time on are identical in every stage."""
    before = _block(lists, begin, period, 0, usual)
    count = 0
    while before is not None:
        count += 1
        after = _block(lists, begin + count * period, period, count * group, usual)
        if after != before:
            return count
    return count


def _block(
    lists: list[list[tuple[float, Event]]], begin: float, period: float, shift: int, usual: tuple[int, int]
) -> list[list[tuple[float, object]]] | None:
    """The events of a block, micro-batches counted from its first; None where one of them is not usual."""
    found = []
    for stage in lists:
        mine: list[tuple[float, object]] = []
        for i in range(_first(stage, begin), _first(stage, begin + period)):
            at, event = stage[i]
            item = event.item if isinstance(event, Exchange) else event
            if not usual[0] <= item.micro_batch < usual[1]:
                return None
            ends = (event.source, event.target) if isinstance(event, Exchange) else ()
            mine.append((at - begin, (item.kind, item.piece, item.micro_batch - shift, ends)))
        found.append(mine)
    return found
