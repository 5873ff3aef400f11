"""A processor's data caches, detected."""

from __future__ import annotations

from pathlib import Path

from stepsight.kernels.embedding.cpu.work import detect_caches


def write(folder: Path, index: int, **files: object) -> None:
    (folder / f"index{index}").mkdir()
    for name, content in files.items():
        (folder / f"index{index}" / name).write_text(f"{content}\n")


def test_data_and_unified_caches_are_read_nearest_first(tmp_path: Path) -> None:
    write(tmp_path, 0, type="Data", level=1, size="32K")
    write(tmp_path, 1, type="Instruction", level=1, size="32K")
    write(tmp_path, 2, type="Unified", level=2, size="1024K")
    write(tmp_path, 3, type="Unified", level=3, size="32M")
    assert detect_caches(tmp_path) == (2.0**15, 2.0**20, 2.0**25)


def test_a_level_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, type="Data", level=1, size="32K")
    write(tmp_path, 2, type="Unified", level=2, size="many")
    assert detect_caches(tmp_path) == (2.0**15,)
