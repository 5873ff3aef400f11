"""Process groups by their role: the tensor-parallel groups of all ranks are one family with one name.

A program that all ranks share names "the tensor group", not the ranks in it. Every rank makes all groups,
so one rank's list shows them: groups of one size that do not overlap and were made under one description
belong together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepsight.program.job import Group

WORLD = "world"


@dataclass(slots=True)
class Family:
    """Disjoint groups that play one role."""

    name: str
    description: str
    sets: list[tuple[int, ...]] = field(default_factory=list)

    def of(self, rank: int) -> tuple[int, ...] | None:
        return next((ranks for ranks in self.sets if rank in ranks), None)

    def coordinate(self, rank: int) -> int:
        """Where a rank stands in its group; -1 outside."""
        ranks = self.of(rank)
        return ranks.index(rank) if ranks else -1


def families(made: Iterable[tuple[str, tuple[int, ...]]], world: int) -> list[Family]:
    """All groups but the world's, sorted into families in the order they were made."""
    found: list[Family] = []
    for description, ranks in made:
        if len(ranks) == world or any(ranks in family.sets for family in found):
            continue
        home = next((f for f in found if _belongs(f, description, ranks)), None)
        if home is None:
            home = Family(_name(description, found), description)
            found.append(home)
        home.sets.append(ranks)
    for family in found:
        _complete(family, world)
    return found


def _belongs(family: Family, description: str, ranks: tuple[int, ...]) -> bool:
    taken = {r for group in family.sets for r in group}
    return family.description == description and len(family.sets[0]) == len(ranks) and not taken & set(ranks)


def _name(description: str, found: list[Family]) -> str:
    plain = description.removeprefix("mesh_") if description not in ("", "undefined", "None") else "group"
    taken = {f.name for f in found} | {WORLD}
    if plain not in taken:
        return plain
    return next(f"{plain} {i}" for i in range(1, len(found) + 3) if f"{plain} {i}" not in taken)


def _complete(family: Family, world: int) -> None:
    """Ranks that this process made no group for get one like the first, moved along."""
    first = family.sets[0]
    missing = sorted(set(range(world)) - {r for group in family.sets for r in group})
    while missing:
        moved = tuple(r - first[0] + missing[0] for r in first)
        if not set(moved) <= set(missing):
            return
        family.sets.append(moved)
        missing = [r for r in missing if r not in moved]


def groups_of(found: Iterable[Family], world: int) -> dict[str, tuple[Group, ...]]:
    """The job's groups: the world, and every family."""
    groups: dict[str, tuple[Group, ...]] = {WORLD: (Group(WORLD, tuple(range(world))),)}
    for family in found:
        groups[family.name] = tuple(Group(f"{family.name} {i}", ranks) for i, ranks in enumerate(family.sets))
    return groups
