"""The places of a query's parts in the SQL text, and the trees of its expressions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from service.sql.expressions.nodes import Expression, position_of

T = TypeVar("T")


@dataclass(frozen=True)
class Origins:
    """By JSON pointer: the offset in the SQL of each part, and the tree of each expression. `notes` are sentences about
    the query for the job's report. `constructs` are the names of its constructs that depend on the tables' columns.
    """

    places: dict[str, int] = field(default_factory=dict)
    trees: dict[str, Expression] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    constructs: set[str] = field(default_factory=set)

    def add(self, pointer: str, tree: Expression, place: int | None) -> None:
        """Records an expression; `place` is its offset if none of its parts has one."""
        self.trees[pointer] = tree
        at = position_of(tree)
        if at is not None or place is not None:
            self.places[pointer] = at if at is not None else place or 0

    def move(self, pointer: str, to: str) -> None:
        """Moves all parts below `pointer` to pointers below `to`."""
        _move(self.places, pointer, to)
        _move(self.trees, pointer, to)

    def place_of(self, part: str) -> int | None:
        """Returns the offset of a part, of the first part inside it, or of the nearest part around it; else None."""
        inside = [place for pointer, place in self.places.items() if pointer.startswith(f"{part}/")]
        if part not in self.places and inside:
            return min(inside)
        while part and part not in self.places:
            part = part.rpartition("/")[0]
        return self.places.get(part)


def _move(found: dict[str, T], pointer: str, to: str) -> None:
    for each in [each for each in found if each.startswith(f"{pointer}/") or (pointer and each == pointer)]:
        found[to + each.removeprefix(pointer)] = found.pop(each)
