"""Which ways of running a join Spark 4.3 has: five of the nine pairs of ship and local strategy, not each for every
kind.

A broadcast side is the hashed one, and no outer join broadcasts the side whose unmatched rows it keeps: each task would
emit them. Once both sides are parted by the key a hash table of either side does, but a semi or anti join hashes the
right one alone (`JoinSelectionHelper.canBuildBroadcastLeft` and its three siblings, found again in physical plans).

What a join does with its sides: where it makes rows of NULLs, and where a condition on one side may be checked.

Join hints: `SELECT /*+ BROADCAST(u), SHUFFLE_HASH(p) */ …` as ship and local strategy of the joins they are about.

A hint names tables of its own SELECT by the names under which FROM knows them, and concerns the join that each stands
in: the joined table is that join's right side, the first table of FROM the left side of the first join. The named side
is the one that is broadcast, or hashed. Where one hint names both sides of a join, the first that the kind of join
allows is taken, as Flink does. Spark's names and Flink's are read; with other hints, unknown tables, or two that
contradict each other the query is refused: a hint is never ignored in silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from service.contract.options import JoinLocal, JoinShip
from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.contract.query import JoinKind
from service.sql.expressions.compile_expression import matching
from service.sql.parser import Text, tokens_of

ONE_SIDED = frozenset({JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI})
"""Kinds that emit the left side's columns alone."""

BROADCASTS_LEFT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT})
"""Kinds that may broadcast their left side."""

BROADCASTS_RIGHT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT}) | ONE_SIDED
"""Kinds that may broadcast their right side."""

HASHED_SIDE = {JoinShip.BROADCAST_LEFT: JoinLocal.HASH_LEFT, JoinShip.BROADCAST_RIGHT: JoinLocal.HASH_RIGHT}
"""The only local strategy beside a broadcast, where the join has keys."""


def refusal_of_ship(kind: JoinKind, ship: JoinShip, has_keys: bool) -> str | None:
    """Why a join of this kind cannot ship its rows so; None where it can. `has_keys`: it has an equality."""
    if ship is JoinShip.REPARTITION and not has_keys:
        return "a join without an equality has no key to part its rows by"
    if ship is JoinShip.BROADCAST_LEFT and kind not in BROADCASTS_LEFT:
        return f"a {kind} join cannot broadcast its left side" + _because_of(kind, "left")
    if ship is JoinShip.BROADCAST_RIGHT and kind not in BROADCASTS_RIGHT:
        return f"a {kind} join cannot broadcast its right side" + _because_of(kind, "right")
    return None


def refusal_of_local(kind: JoinKind, local: JoinLocal, has_keys: bool) -> str | None:
    """Why a task cannot join its rows so in a join of this kind; None where it can."""
    if local is JoinLocal.AUTO:
        return None
    if not has_keys:
        return "a join without an equality compares every pair of rows: there is nothing to hash or to merge by"
    if local is JoinLocal.HASH_LEFT and kind in ONE_SIDED:
        return f"a {kind} join keeps left rows once each, so that its hash table is of the right side"
    return None


def refusal_of_pair(ship: JoinShip, local: JoinLocal) -> str | None:
    """Why Spark has not this pair; None where it has."""
    hashed = HASHED_SIDE.get(ship)
    if hashed is None or local in {JoinLocal.AUTO, hashed}:
        return None
    return f"Spark builds the hash table of the side that it broadcasts: {ship} goes with {hashed} alone"


def _because_of(kind: JoinKind, side: str) -> str:
    if kind in ONE_SIDED:
        return ": it keeps left rows once each"
    return f": every task would emit the unmatched rows of the {side} side"


class Side(StrEnum):
    """A side of a join."""

    LEFT = "LEFT"
    RIGHT = "RIGHT"


NULL_EXTENDED = {
    JoinKind.LEFT: frozenset({Side.RIGHT}),
    JoinKind.RIGHT: frozenset({Side.LEFT}),
    JoinKind.FULL: frozenset(Side),
}
"""Sides of which a row may be all NULLs, for want of a partner."""

CONDITION_MOVES = {
    JoinKind.INNER: frozenset(Side),
    JoinKind.CROSS: frozenset(Side),
    JoinKind.LEFT: frozenset({Side.LEFT}),
    JoinKind.RIGHT: frozenset({Side.RIGHT}),
    JoinKind.LEFT_SEMI: frozenset({Side.LEFT}),
    JoinKind.LEFT_ANTI: frozenset({Side.LEFT}),
}
"""Sides below which a condition on them alone, above the join, may as well be checked; Spark moves them there too, with
or without this, those that may fail included, and before the conditions in the join."""

RESIDUAL_MOVES = {
    JoinKind.INNER: frozenset(Side),
    JoinKind.LEFT: frozenset({Side.RIGHT}),
    JoinKind.RIGHT: frozenset({Side.LEFT}),
    JoinKind.LEFT_SEMI: frozenset(Side),
    JoinKind.LEFT_ANTI: frozenset({Side.RIGHT}),
}
"""The same of a condition in the join."""


_LEFT_AND_RIGHT = {
    "BROADCAST": (
        (JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT),
        (JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT),
    ),
    "SHUFFLE_HASH": (
        (JoinShip.REPARTITION, JoinLocal.HASH_LEFT),
        (JoinShip.REPARTITION, JoinLocal.HASH_RIGHT),
    ),
    "SHUFFLE_MERGE": (
        (JoinShip.REPARTITION, JoinLocal.SORT_MERGE),
        (JoinShip.REPARTITION, JoinLocal.SORT_MERGE),
    ),
}
"""What a hint means where it names a join's left side, and its right side."""

_SYNONYMS = {
    "BROADCASTJOIN": "BROADCAST",
    "MAPJOIN": "BROADCAST",
    "MERGE": "SHUFFLE_MERGE",
    "MERGEJOIN": "SHUFFLE_MERGE",
}
_NAMES = (*_LEFT_AND_RIGHT, *_SYNONYMS)
_VISIBLE = re.compile(r"[^\n]")


@dataclass(frozen=True)
class HintedJoin:
    """How a hint wants a join to run; `at` is the offset of the table's name in the hint, `hint` the hint's name."""

    ship: JoinShip
    local: JoinLocal
    hint: str
    at: int


@dataclass(frozen=True)
class _Hint:
    name: str
    at: int
    tables: tuple[tuple[str, int], ...]


def read_hints(
    select: exp.Select, first: str, joins: Sequence[tuple[JoinKind, str]], source: Text
) -> Mapping[int, HintedJoin]:
    """The joins, by index, that the hints of `select` are about; `first` and `joins` name the tables of FROM.

    Raises SpecError `sql_syntax`, `unsupported_hint`, `unknown_table`, `conflicting_hints`, with line and column.
    """
    node = select.args.get("hint")
    if node is None:
        return {}
    found: dict[int, HintedJoin] = {}
    for hint in _Reader(source, node.expressions[0].name, node.meta["start"]).hints():
        for index, hinted in _joins_of(hint, first, joins, source).items():
            other = found.setdefault(index, hinted)
            if (other.ship, other.local) != (hinted.ship, hinted.local):
                detail = f"{other.hint} and {hint.name} say different things of the join with {joins[index][1]}."
                raise source.error("conflicting_hints", f"{detail} Keep one of them.", at=hinted.at)
    return found


def _joins_of(hint: _Hint, first: str, joins: Sequence[tuple[JoinKind, str]], source: Text) -> Mapping[int, HintedJoin]:
    left, right = _LEFT_AND_RIGHT[_SYNONYMS.get(hint.name, hint.name)]
    found: dict[int, HintedJoin] = {}
    for name, at in hint.tables:
        names = [first, *(table for _, table in joins)]
        table = matching(name, names)
        if table is None:
            suggestions = nearest_names(name, names)
            detail = f"{hint.name} names {name}, which is no table of its FROM.{did_you_mean(suggestions)}"
            raise source.error("unknown_table", detail, at=at, suggestions=suggestions)
        if not joins:
            detail = f"{hint.name}({name}) has no effect: {table} is joined with nothing here."
            raise source.error("unsupported_hint", detail, at=at)
        place = names.index(table)
        index = max(place - 1, 0)
        hinted = HintedJoin(*(right if place else left), hint.name, at)
        if index not in found or not _is_allowed(joins[index][0], found[index]):
            found[index] = hinted
    return found


def _is_allowed(kind: JoinKind, hinted: HintedJoin) -> bool:
    refusals = (refusal_of_ship(kind, hinted.ship, True), refusal_of_local(kind, hinted.local, True))
    return refusals == (None, None)


class _Reader:
    """Reads `NAME(table, …)` one after the other, with or without commas between; `start` is the offset of `/*+`."""

    def __init__(self, source: Text, comment: str, start: int) -> None:
        self._source = source
        # Blanks for what stands before: every token then knows its place in the whole text.
        blanks = _VISIBLE.sub(" ", source.text[: start + len("/*+")])
        self._tokens = tokens_of(Text(blanks + comment[len("/*+") : -len("*/")], source.pointer))
        self._at = 0
        self._start = start

    def hints(self) -> list[_Hint]:
        hints = [self._hint()]
        while self._peek() is not None:
            self._skip(TokenType.COMMA)
            hints.append(self._hint())
        return hints

    def _hint(self) -> _Hint:
        token = self._next("the name of a hint")
        name = token.text.upper()
        if name not in _NAMES:
            raise self._unsupported(token)
        if not self._skip(TokenType.L_PAREN):
            self._fail(f"{name} needs the names of tables: {name}(t).", token)
        tables = [self._table()]
        while self._skip(TokenType.COMMA):
            tables.append(self._table())
        if not self._skip(TokenType.R_PAREN):
            self._fail(f"{name} takes names of tables, parted by commas, in parentheses.", self._peek())
        return _Hint(name, token.start, tuple(tables))

    def _table(self) -> tuple[str, int]:
        token = self._next("the name of a table")
        is_name = token.token_type is TokenType.IDENTIFIER or token.text.replace("_", "a").isalnum()
        if not is_name or token.token_type in {TokenType.STRING, TokenType.NUMBER}:
            self._fail("A hint takes names of tables.", token)
        return token.text, token.start

    def _unsupported(self, token: Token) -> SpecError:
        if token.token_type is TokenType.STRING or not token.text.isidentifier():
            self._fail("A hint is NAME(table, …).", token)
        suggestions = nearest_names(token.text, _NAMES)
        known = ", ".join(_LEFT_AND_RIGHT)
        detail = f"There is no hint {token.text.upper()} here: {known} and their synonyms are read."
        return self._source.error("unsupported_hint", detail, at=token.start, suggestions=suggestions)

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, what: str) -> Token:
        token = self._peek()
        if token is None:
            self._fail(f"The hint ends where {what} should stand.", None)
        self._at += 1
        return token

    def _skip(self, type_: TokenType) -> bool:
        token = self._peek()
        if token is None or token.token_type is not type_:
            return False
        self._at += 1
        return True

    def _fail(self, detail: str, token: Token | None) -> NoReturn:
        raise self._source.error("sql_syntax", detail, at=token.start if token is not None else self._start)
