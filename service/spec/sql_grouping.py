"""GROUP BY as keys and grouping sets: ROLLUP, CUBE and GROUPING SETS written out, multiplied where several stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.spec.dialect import Text, place_of
from service.spec.limits import CUBE_KEYS, GROUPING_SETS
from service.spec.tree import Expression

Set = tuple[Expression, ...]
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(frozen=True)
class Grouping:
    """The keys, each once, in order of appearance; `sets` are empty for a grouping by all of them."""

    keys: tuple[Expression, ...]
    sets: tuple[Set, ...] = ()


def read_grouping(
    clause: exp.Group, source: Text, read_key: Callable[[exp.Expr], Expression], within: int | None
) -> Grouping:
    """What `clause` groups by; `read_key` reads one key, `within` is an offset in its SELECT.

    Raises SpecError `unsupported_construct`, `query_too_deep`, and what `read_key` raises.
    """
    return _Reader(source, read_key, within).grouping(clause)


class _Reader:
    def __init__(self, source: Text, read_key: Callable[[exp.Expr], Expression], within: int | None) -> None:
        self._source = source
        self._within = within
        self._read_key = read_key

    def _place(self) -> int | None:
        return place_of(self._source, TokenType.GROUP_BY, self._within)

    def grouping(self, clause: exp.Group) -> Grouping:
        """Keys and sets of the whole clause."""
        for key, value in clause.args.items():
            if value and key not in {"expressions", "rollup", "cube", "grouping_sets"}:
                construct = f"GROUP BY {'' if key == 'all' else 'with '}{key.upper()}"
                raise self._source.unsupported(construct, at=self._place(), hint="Name the keys.")
        plain = all(not isinstance(node, _SETS) for node in clause.expressions)
        behind = [kind for kind in ("rollup", "cube", "grouping_sets") if clause.args.get(kind)]
        if plain and not behind and not clause.expressions:
            raise self._source.error("sql_syntax", "GROUP BY names no key.", at=self._place())
        if plain and not behind:
            return Grouping(_once(self._read_key(node) for node in clause.expressions))
        if behind:
            named = tuple(self._read_key(node) for node in clause.expressions)
            sets = self._sets_behind(clause, behind[0], named)
            keys = _once([*named, *(key for one in sets for key in one)])
        else:
            parts = [self._sets(node) for node in clause.expressions]
            self._check(parts)
            sets = [_once(key for part in chosen for key in part) for chosen in product(*parts)]
            keys = _once(key for part in parts for one in part for key in one)
        if not keys:
            raise self._source.unsupported("GROUP BY without a key", at=self._place(), hint="Leave GROUP BY out.")
        return Grouping(keys, tuple(sets))

    def _sets_behind(self, clause: exp.Group, kind: str, keys: Set) -> list[Set]:
        if kind == "grouping_sets":
            (sets,) = clause.args[kind]
            return self._sets(sets)
        units: list[Set] = [(key,) for key in keys]
        return _rolled_up(units) if kind == "rollup" else self._cubed(units)

    def _sets(self, node: exp.Expr) -> list[Set]:
        """The grouping sets that one element of GROUP BY stands for."""
        if isinstance(node, exp.Rollup):
            return _rolled_up([self._set(each) for each in node.expressions])
        if isinstance(node, exp.Cube):
            return self._cubed([self._set(each) for each in node.expressions])
        if isinstance(node, exp.GroupingSets):
            return [one for each in node.expressions for one in self._sets(each)]
        return [self._set(node)]

    def _set(self, node: exp.Expr) -> Set:
        if isinstance(node, exp.Tuple):
            return _once(self._read_key(each) for each in node.expressions)
        return (self._read_key(node.this if isinstance(node, exp.Paren) else node),)

    def _cubed(self, units: list[Set]) -> list[Set]:
        if len(units) > CUBE_KEYS.most:
            raise self._source.beyond(CUBE_KEYS, len(units), at=self._place())
        chosen = (choice for size in range(len(units), -1, -1) for choice in combinations(units, size))
        return [_once(key for unit in choice for key in unit) for choice in chosen]

    def _check(self, parts: Sequence[Sequence[Set]]) -> None:
        count = 1
        for part in parts:
            count *= len(part)
        if count > GROUPING_SETS.most:
            raise self._source.beyond(GROUPING_SETS, count, at=self._place())


def _rolled_up(units: list[Set]) -> list[Set]:
    return [_once(key for unit in units[:size] for key in unit) for size in range(len(units), -1, -1)]


def _once(keys: Iterable[Expression]) -> Set:
    return tuple(dict.fromkeys(keys))
