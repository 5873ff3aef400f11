"""The caching allocator's rules, one sentence each."""

from __future__ import annotations

from stepsight.program.allocator import MIB, CachingAllocator


def test_small_requests_share_a_segment_of_two_mebibytes() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1, 1)
    allocator.allocate(2, 1000)
    assert allocator.active_bytes == 512 + 1024
    assert allocator.reserved_bytes == 2 * MIB


def test_a_medium_request_reserves_twenty_mebibytes_a_large_one_its_own() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1, 3 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(2, 33 * MIB)
    assert allocator.reserved_bytes == 20 * MIB + 34 * MIB


def test_a_block_is_not_split_for_a_mebibyte() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1, 33 * MIB)  # a segment of 34
    assert allocator.size_of(1) == 34 * MIB


def test_freed_neighbours_join_and_serve_a_larger_request() -> None:
    allocator = CachingAllocator()
    for number in range(4):
        allocator.allocate(number, 5 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(1)
    allocator.free(2)
    allocator.allocate(5, 9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_peaks_outlive_what_made_them_until_they_are_reset() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1, 40 * MIB)
    allocator.free(1)
    assert (allocator.active_bytes, allocator.peak_active_bytes) == (0, 40 * MIB)
    allocator.empty_cache()
    allocator.reset_peaks()
    assert allocator.peak_active_bytes == allocator.peak_reserved_bytes == 0


def test_streams_do_not_share_free_blocks() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1, 40 * MIB, stream=0)
    allocator.free(1)
    allocator.allocate(2, 40 * MIB, stream=1)
    assert allocator.reserved_bytes == 80 * MIB


def test_the_cache_is_emptied_before_more_is_reserved_than_there_is() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.allocate(1, 60 * MIB)
    allocator.free(1)
    allocator.allocate(2, 90 * MIB)
    assert allocator.reserved_bytes == 90 * MIB
    allocator.allocate(3, 30 * MIB)
    assert allocator.reserved_bytes == 120 * MIB
