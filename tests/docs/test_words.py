"""The table of words in docs/contributing.md is checked everywhere."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def words() -> ModuleType:
    loader = SourceFileLoader("words", str(ROOT / "scripts" / "words"))
    spec = spec_from_loader("words", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_table_names_words_with_what_to_write_instead(words: ModuleType) -> None:
    assert {"beside", "so many", "even_handed"} <= set(words.banned())


def test_a_word_is_found_as_a_whole(words: ModuleType) -> None:
    pattern = words.banned()["told"]
    assert pattern.search("as told by the trace") and not pattern.search("untold")


def test_no_word_of_the_table_is_used(words: ModuleType) -> None:
    patterns = words.banned().values()
    assert [line for line in words.everything() if any(p.search(line[1]) for p in patterns)] == []
