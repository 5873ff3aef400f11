"""torch's caching allocator, simulated: what is active, and what the process has reserved from the GPU.

Sizes and rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.x, default settings): requests are
rounded to 512 bytes; those up to 1 MiB come from segments of 2 MiB, those up to 10 MiB from segments of
20 MiB, larger ones from segments of their own rounded to 2 MiB; the smallest free block of the same
stream that fits is taken and split; neighbours that are free are joined again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 1 << 20
ROUND_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MEDIUM_BYTES = 10 * MIB
MEDIUM_SEGMENT_BYTES = 20 * MIB
SEGMENT_ROUND_BYTES = 2 * MIB


@dataclass(slots=True, eq=False)
class _Block:
    """A stretch of a segment: allocated or free."""

    address: int
    size: int
    small: bool
    stream: int
    free: bool = False
    before: _Block | None = None
    after: _Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.address

    @property
    def whole_segment(self) -> bool:
        return self.before is None and self.after is None


@dataclass(slots=True)
class _Pool:
    """Free blocks of one kind and stream by size, then address."""

    keys: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[tuple[int, int], _Block] = field(default_factory=dict)

    def add(self, block: _Block) -> None:
        insort(self.keys, block.key)
        self.blocks[block.key] = block

    def remove(self, block: _Block) -> None:
        del self.keys[bisect_left(self.keys, block.key)]
        del self.blocks[block.key]

    def smallest(self, size: int) -> _Block | None:
        at = bisect_left(self.keys, (size, -1))
        return self.blocks[self.keys[at]] if at < len(self.keys) else None


@dataclass(slots=True)
class CachingAllocator:
    """Follows allocations by number. ``capacity_bytes`` is what segments may take together; 0: no limit."""

    capacity_bytes: int = 0
    active_bytes: int = 0
    reserved_bytes: int = 0
    peak_active_bytes: int = 0
    peak_reserved_bytes: int = 0
    _held: dict[int, _Block] = field(default_factory=dict)
    _pools: dict[tuple[bool, int], _Pool] = field(default_factory=dict)
    _next_address: int = 0

    def allocate(self, number: int, size: int, stream: int = 0) -> None:
        """Allocation ``number`` takes ``size`` bytes; nothing for an empty tensor."""
        if size <= 0:
            return
        rounded = -(-size // ROUND_BYTES) * ROUND_BYTES
        block = self._found(rounded, stream) or self._segment(rounded, stream)
        self._split(block, rounded)
        self._held[number] = block
        self.active_bytes += block.size
        self.peak_active_bytes = max(self.peak_active_bytes, self.active_bytes)

    def free(self, number: int) -> None:
        block = self._held.pop(number, None)
        if block is None:
            return
        self.active_bytes -= block.size
        block.free = True
        for near in (block.before, block.after):
            if near is not None and near.free:
                self._pool(near).remove(near)
                _join(block, near)
        self._pool(block).add(block)

    def size_of(self, number: int) -> int:
        """What an allocation holds, rounding included."""
        return self._held[number].size if number in self._held else 0

    def reset_peaks(self) -> None:
        self.peak_active_bytes = self.active_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def empty_cache(self) -> None:
        """Give segments back that hold nothing."""
        for pool in self._pools.values():
            for block in [b for b in pool.blocks.values() if b.whole_segment]:
                pool.remove(block)
                self.reserved_bytes -= block.size

    def _pool(self, block: _Block) -> _Pool:
        return self._pools.setdefault((block.small, block.stream), _Pool())

    def _found(self, size: int, stream: int) -> _Block | None:
        pool = self._pools.get((size <= SMALL_BYTES, stream))
        block = pool.smallest(size) if pool else None
        if pool is None or block is None:
            return None
        pool.remove(block)
        block.free = False
        return block

    def _segment(self, size: int, stream: int) -> _Block:
        small = size <= SMALL_BYTES
        taken = SMALL_SEGMENT_BYTES if small else MEDIUM_SEGMENT_BYTES
        if size >= MEDIUM_BYTES:
            taken = -(-size // SEGMENT_ROUND_BYTES) * SEGMENT_ROUND_BYTES
        if self.capacity_bytes and self.reserved_bytes + taken > self.capacity_bytes:
            self.empty_cache()
        block = _Block(self._next_address, taken, small, stream)
        self._next_address += taken
        self.reserved_bytes += taken
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block

    def _split(self, block: _Block, size: int) -> None:
        left = block.size - size
        if left < ROUND_BYTES or (not block.small and left <= SMALL_BYTES):
            return
        rest = _Block(block.address + size, left, block.small, block.stream, True, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._pool(rest).add(rest)


def _join(block: _Block, near: _Block) -> None:
    """``block`` takes in a free neighbour."""
    if near is block.before:
        block.address, block.before = near.address, near.before
        if near.before is not None:
            near.before.after = block
    else:
        block.after = near.after
        if near.after is not None:
            near.after.before = block
    block.size += near.size
