"""Join hints: `SELECT /*+ BROADCAST(u), SHUFFLE_HASH(p) */ …`.

A hint names tables of its SELECT by their names in FROM. A joined table is the right side of its join; the first table
of FROM is the left side of the first join. The named side is broadcast or hashed; if a hint names both sides, the first
one that the kind of join allows is used, as in Flink. A hint that cannot be followed is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from service.contract.options import JoinLocal, JoinShip
from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.contract.query import JoinKind
from service.sql.expressions.compile_expression import matching
from service.sql.joins import refusal_of_local, refusal_of_ship
from service.sql.parser import Text, tokens_of

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
"""The strategy of a hint that names a join's left side, and its right side."""

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
    """The strategy that a hint sets; `at` is the offset of the table's name in the hint, `hint` the hint's name."""

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
    """Returns the hinted joins of `select` by index; `first` and `joins` name the tables of FROM.

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
                detail = f"{other.hint} and {hint.name} set different strategies for the join with {joins[index][1]}."
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
            detail = f"{hint.name} names {name}, which is not a table in FROM.{did_you_mean(suggestions)}"
            raise source.error("unknown_table", detail, at=at, suggestions=suggestions)
        if not joins:
            detail = f"{hint.name}({name}) has no effect, because {table} is not joined. Remove the hint."
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
    """Reads a list of `NAME(table, …)`, with or without commas between them; `start` is the offset of `/*+`."""

    def __init__(self, source: Text, comment: str, start: int) -> None:
        self._source = source
        # Preceded by blanks, so that the offset of a token is that in the whole text.
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
            self._fail(f"{name} needs the names of tables, for example {name}(t).", token)
        tables = [self._table()]
        while self._skip(TokenType.COMMA):
            tables.append(self._table())
        if not self._skip(TokenType.R_PAREN):
            self._fail(f"Write the tables of {name} in parentheses, separated by commas: {name}(t, u).", self._peek())
        return _Hint(name, token.start, tuple(tables))

    def _table(self) -> tuple[str, int]:
        token = self._next("the name of a table")
        is_name = token.token_type is TokenType.IDENTIFIER or token.text.replace("_", "a").isalnum()
        if not is_name or token.token_type in {TokenType.STRING, TokenType.NUMBER}:
            self._fail("An argument of a hint must be the name of a table.", token)
        return token.text, token.start

    def _unsupported(self, token: Token) -> SpecError:
        if token.token_type is TokenType.STRING or not token.text.isidentifier():
            self._fail("Write a hint as NAME(table, …).", token)
        suggestions = nearest_names(token.text, _NAMES)
        known = ", ".join(_LEFT_AND_RIGHT)
        detail = f"The hint {token.text.upper()} is not supported. The hints are {known} and their synonyms."
        return self._source.error("unsupported_hint", detail, at=token.start, suggestions=suggestions)

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, what: str) -> Token:
        token = self._peek()
        if token is None:
            self._fail(f"The hint ends, but {what} is expected.", None)
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
