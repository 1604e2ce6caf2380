"""Finds the part of a text from which an expression was read, for messages about an expression that failed.

A tree has the offsets of its names, literals and calls only. The tokens around them give the rest: the operator between
two operands, the word CAST before its parenthesis. `Spans.of` returns None rather than a part that may be another one:
rules and derived tables merge expressions from several places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from service.sql.expressions.calls import SYNONYMS
from service.sql.expressions.nodes import (
    Aggregate,
    Arithmetic,
    Between,
    BitwiseNot,
    Boolean,
    Call,
    Case,
    Cast,
    Column,
    Comparison,
    Connective,
    Element,
    Expression,
    Extract,
    GetField,
    InList,
    Like,
    Name,
    Negation,
    Not,
    Null,
    Number,
    String,
    Test,
    Variable,
    children,
)

_MOST_BETWEEN = 4
"""The most tokens between two operands: `IS NOT DISTINCT FROM`."""

_NOT_AN_OPERATOR = frozenset(
    {TokenType.COMMA, TokenType.L_PAREN, TokenType.R_PAREN, TokenType.SELECT, TokenType.ON, TokenType.WHERE}
)

Span = tuple[int, int]
"""The first and the last token, both included."""


@dataclass(frozen=True)
class Place:
    """A part of a text: its offsets, the second one excluded, and what is written there."""

    start: int
    end: int
    text: str


class Spans:
    """Finds expressions in `text`, whose tokens are `tokens`."""

    def __init__(self, text: str, tokens: Iterable[Token]) -> None:
        self._text = text
        self._tokens = tuple(tokens)
        self._by_start = {token.start: index for index, token in enumerate(self._tokens)}

    def of(self, node: Expression) -> Place | None:
        """Returns the part of the text from which `node` was read; None if it is not certain."""
        span = self._span(node)
        return None if span is None else self._place(span)

    def operand(self, node: Expression) -> Place | None:
        """Returns the same as `of`, with the parentheses around it."""
        span = self._operand(node)
        return None if span is None else self._place(span)

    def _place(self, span: Span) -> Place:
        start, end = self._tokens[span[0]].start, self._tokens[span[1]].end + 1
        return Place(start, end, self._text[start:end])

    def _span(self, node: Expression) -> Span | None:
        match node:
            case Name() | Column() | Call() | Null() | Boolean() | Number() | String():
                return None if node.at is None else self._leaf(node.at)
            case GetField(operand) if isinstance(operand, Column | Name | Variable | GetField):
                # Its offset is that of the first name.
                return self._span(operand)
            case Element(operand, index):
                return self._element(operand, index)
            case Variable():
                return None if node.at is None else self._leaf(node.at)
            case Cast():
                return self._cast(node)
            case Aggregate():
                return self._aggregate(node)
            case Extract(_, operand):
                span = self._span(operand)
                return None if span is None else self._around(span[0], {"EXTRACT"})
            case Negation(operand):
                return self._prefixed(operand, "-")
            case BitwiseNot(operand):
                return self._prefixed(operand, "~")
            case Not(operand):
                return self._prefixed(operand, "NOT")
            case Arithmetic(_, left, right) | Comparison(_, left, right) | Like(_, left, right):
                return self._binary(left, right)
            case Case() | Connective() | InList() | Between() | Test():
                return self._several(node)
            case _:
                return None

    def _leaf(self, at: int) -> Span | None:
        first = self._by_start.get(at)
        if first is None:
            return None
        last = first
        while self._is(last + 1, TokenType.DOT) and last + 2 < len(self._tokens):
            last += 2
        if self._is(last + 1, TokenType.L_PAREN) and self._tokens[last].token_type is not TokenType.PLACEHOLDER:
            closing = self._closing(last + 1)
            return None if closing is None else (first, closing)
        return first, last

    def _operand(self, node: Expression) -> Span | None:
        span = self._span(node)
        return None if span is None else self._widened(span)

    def _widened(self, span: Span) -> Span:
        first, last = span
        while self._is(first - 1, TokenType.L_PAREN) and self._is(last + 1, TokenType.R_PAREN):
            if self._closing(first - 1) != last + 1 or self._is_called(first - 1):
                break
            first, last = first - 1, last + 1
        return first, last

    def _is_called(self, opening: int) -> bool:
        """Whether the parenthesis follows a name, as that of a call does."""
        if not opening:
            return False
        before = self._tokens[opening - 1]
        return before.token_type is TokenType.VAR or before.text.upper() in _CALLED

    def _cast(self, node: Cast) -> Span | None:
        span = self._operand(node.operand)
        if span is None:
            return None
        first, last = span
        if self._is(last + 1, TokenType.DCOLON):
            end = last + 2
            closing = self._closing(end + 1) if self._is(end + 1, TokenType.L_PAREN) else end
            return None if closing is None or end >= len(self._tokens) else (first, closing)
        if not self._is(last + 1, TokenType.ALIAS) or not self._is(first - 1, TokenType.L_PAREN):
            # A parameter may be a literal with a cast.
            is_parameter = first == last and self._tokens[first].token_type is TokenType.PLACEHOLDER
            return span if is_parameter and isinstance(node.operand, Null | String | Number) else None
        return self._around(first, {"TRY_CAST" if node.tries else "CAST"})

    def _aggregate(self, node: Aggregate) -> Span | None:
        span = self._span(node.arguments[0]) if node.arguments else None
        if span is None:
            return None
        names = {node.function.value, *(name for name, other in SYNONYMS.items() if other is node.function)}
        return self._around(self._widened(span)[0], names)

    def _around(self, inside: int, names: set[str]) -> Span | None:
        """Returns the call that directly encloses the token `inside`; None if it is not one of `names`."""
        depth = 0
        for index in range(inside - 1, 0, -1):
            kind = self._tokens[index].token_type
            depth += (kind is TokenType.R_PAREN) - (kind is TokenType.L_PAREN)
            if depth < 0:
                closing = self._closing(index)
                is_named = self._tokens[index - 1].text.upper() in names
                return (index - 1, closing) if is_named and closing is not None else None
        return None

    def _prefixed(self, operand: Expression, sign: str) -> Span | None:
        span = self._operand(operand)
        if span is None:
            return None
        first, last = span
        if self._tokens[first].token_type is TokenType.PLACEHOLDER and isinstance(operand, Number):
            return span
        return (first - 1, last) if first and self._tokens[first - 1].text.upper() == sign else None

    def _binary(self, left: Expression, right: Expression) -> Span | None:
        one, other = self._operand(left), self._operand(right)
        if one is None or other is None or not 1 <= other[0] - one[1] - 1 <= _MOST_BETWEEN:
            return None
        between = self._tokens[one[1] + 1 : other[0]]
        return None if any(token.token_type in _NOT_AN_OPERATOR for token in between) else (one[0], other[1])

    def _element(self, operand: Expression, index: Expression) -> Span | None:
        one, other = self._operand(operand), self._operand(index)
        if one is None or other is None or not self._is(one[1] + 1, TokenType.L_BRACKET):
            return None
        return (one[0], other[1] + 1) if self._is(other[1] + 1, TokenType.R_BRACKET) else None

    def _several(self, node: Expression) -> Span | None:
        spans = [self._operand(child) for child in children(node)]
        known = [span for span in spans if span is not None]
        if len(known) != len(spans) or not known or known != sorted(known):
            return None
        first, last = known[0][0], known[-1][1]
        if any(token.token_type is TokenType.SELECT for token in self._tokens[first:last]):
            return None
        if isinstance(node, InList):
            closing = self._closing_after(last)
            return None if closing is None else (first, closing)
        if isinstance(node, Test):
            while last + 1 < len(self._tokens) and self._tokens[last + 1].text.upper() in _TEST_WORDS:
                last += 1
            return first, last
        return self._case(first, last) if isinstance(node, Case) else (first, last)

    def _case(self, first: int, last: int) -> Span | None:
        while first and self._tokens[first].token_type is not TokenType.CASE:
            first -= 1
        while last < len(self._tokens) and self._tokens[last].token_type is not TokenType.END:
            last += 1
        return (first, last) if last < len(self._tokens) else None

    def _closing_after(self, last: int) -> int | None:
        return last + 1 if self._is(last + 1, TokenType.R_PAREN) else None

    def _closing(self, opening: int) -> int | None:
        depth = 0
        for index in range(opening, len(self._tokens)):
            kind = self._tokens[index].token_type
            depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
            if depth == 0:
                return index
        return None

    def _is(self, index: int, kind: TokenType) -> bool:
        return 0 <= index < len(self._tokens) and self._tokens[index].token_type is kind


_CALLED = frozenset({"IN", "CAST", "TRY_CAST", "LEFT", "RIGHT", "REPLACE", "IF", "DATE", "TIMESTAMP", "FILTER"})
"""Words that are no names to the tokenizer, and have a parenthesis of their own."""

_TEST_WORDS = frozenset({"IS", "NOT", "NULL", "TRUE", "FALSE"})
