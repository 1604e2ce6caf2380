"""Parses the calls whose arguments the SQL standard separates by words, such as `substring(x FROM 1 FOR 2)`.

Each becomes the call with commas that means the same in Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

_Parser = Any
"""sqlglot's parser, whose methods are not public."""

_TRIMS = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}


def _substring(parser: _Parser, name: str) -> exp.Anonymous:
    """`substring(x FROM 1 FOR 2)` is `substring(x, 1, 2)`."""
    arguments = [parser._parse_bitwise()]
    _require(parser, "FROM")
    arguments.append(parser._parse_bitwise())
    if parser._match_text_seq("FOR"):
        arguments.append(parser._parse_bitwise())
    return exp.Anonymous(this=name, expressions=arguments)


def _trim(parser: _Parser, _name: str) -> exp.Anonymous:
    """`trim(LEADING 'x' FROM y)` is `ltrim('x', y)`, and `trim(BOTH 'x' FROM y)` is `btrim(y, 'x')`."""
    side = next((word for word in _TRIMS if parser._match_text_seq(word)), "BOTH")
    characters = None if parser._curr.token_type is TokenType.FROM else parser._parse_bitwise()
    _require(parser, "FROM")
    text = parser._parse_bitwise()
    arguments = [text] if characters is None else [text, characters]
    # In Spark, only `btrim` begins with the text.
    return exp.Anonymous(this=_TRIMS[side], expressions=arguments if side == "BOTH" else arguments[::-1])


def _position(parser: _Parser, name: str) -> exp.Anonymous:
    """`position('a' IN x)` is `position('a', x)`."""
    part = parser._parse_bitwise()
    _require(parser, "IN")
    return exp.Anonymous(this=name, expressions=[part, parser._parse_bitwise()])


def _overlay(parser: _Parser, name: str) -> exp.Anonymous:
    """`overlay(x PLACING y FROM 2 FOR 3)` is `overlay(x, y, 2, 3)`."""
    arguments = [parser._parse_bitwise()]
    for word in ("PLACING", "FROM"):
        _require(parser, word)
        arguments.append(parser._parse_bitwise())
    if parser._match_text_seq("FOR"):
        arguments.append(parser._parse_bitwise())
    return exp.Anonymous(this=name, expressions=arguments)


def _require(parser: _Parser, word: str) -> None:
    if not parser._match_text_seq(word):
        parser.raise_error(f"Expected {word}")


def _either(word: str, with_words: Callable[[_Parser, str], exp.Anonymous]) -> Callable[[_Parser], exp.Expr]:
    """Returns the parser of a call: by `with_words` if `word` is among its arguments, else with commas."""

    def parse(parser: _Parser) -> exp.Expr:
        token = parser._tokens[parser._index - 2]
        if _has_word(parser, word):
            call = with_words(parser, token.text)
            call.meta["words"] = True
        else:
            call = exp.Anonymous(this=token.text, expressions=parser._parse_function_args(True))
        return call.update_positions(token)

    return parse


def _has_word(parser: _Parser, word: str) -> bool:
    """Whether `word` stands between the parentheses of the call, outside of inner parentheses."""
    depth = 1
    for token in parser._tokens[parser._index :]:
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth == 0:
            return False
        if depth == 1 and token.token_type is not TokenType.STRING and token.text.upper() == word:
            return True
    return False


FUNCTIONS_WITH_WORDS: dict[str, Callable[[_Parser], exp.Expr]] = {
    "SUBSTRING": _either("FROM", _substring),
    "SUBSTR": _either("FROM", _substring),
    "TRIM": _either("FROM", _trim),
    "POSITION": _either("IN", _position),
    "OVERLAY": _either("PLACING", _overlay),
}
"""The parsers, by upper-case name, for `FUNCTION_PARSERS` of sqlglot's parser."""
