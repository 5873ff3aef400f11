"""In which order each stage of a pipeline works: all forward first, 1F1B, interleaved, zero-bubble.

An item is a pass (forward F, backward B; with zero-bubble B gives only the input's gradient and W the
weights') of one micro-batch over one piece of the model. `orders` lists the items of each stage;
`exchanges` puts messages between them such that no two stages wait for each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def exchanges(order: list[list[Item]], pieces: int) -> list[list[Item | Exchange]]:
    """Each stage's items with its messages, sent and received, between them.

    Both ends of a message must come to it in the same order as to their other messages. Walking the
    schedule with equal times for all passes gives one order of all events; each stage's list follows it.
    """
    stages = len(order)
    done: dict[Item, float] = {}
    free, at = [0.0] * stages, [0] * stages
    events: list[list[tuple[float, int, int, Item | Exchange]]] = [[] for _ in range(stages)]
    serial = 0
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
                serial += 1
                events[s].append((begin, 1, serial, item))
                target = _target(item, pieces)
                if target is not None and target % stages != s:
                    message = Exchange(item, s, target % stages)
                    events[s].append((end, 0, serial, message))
                    events[target % stages].append((end, 0, serial, message))
                at[s] += 1
                left -= 1
                moved = True
        if not moved:
            raise ValueError("the schedule waits for itself")
    return [[event[3] for event in sorted(one, key=lambda e: e[:3])] for one in events]


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
