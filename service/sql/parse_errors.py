"""Describes syntax errors: what is wrong, its place, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from service.contract.problems import nearest_names
from service.sql.refusals import ARITHMETIC, COMPARISONS
from service.sql.types.data_types import ATOMIC, NESTED, TypeName

_MISSING = re.compile(r"Required (?:keyword|argument): '(\w+)' missing for <class '.*\.(\w+)'>")
_OPERATORS = {kind.__name__: sign for kind, sign in {**ARITHMETIC, **COMPARISONS, exp.Neg: "-"}.items()}
_PARTS = {
    "Order": "ORDER BY",
    "If": "WHEN",
    "TryCast": "CAST",
    "CTE": "WITH",
    "GroupingSets": "GROUPING SETS",
}
_TABLE = re.compile(r"Expected table name but got .*", re.DOTALL)
_TYPES = ", ".join(name.value for name in TypeName if name in ATOMIC or name in NESTED)
_COMMA_FORMS = {
    "CEIL": "ceil(x, 1)",
    "FLOOR": "floor(x, 1)",
    "LISTAGG": "LISTAGG(x, ',') WITHIN GROUP (ORDER BY t)",
}
"""Functions whose arguments other dialects separate by words, and the form with commas."""
_DIALECT_HINTS = {
    "TOP": "Write LIMIT at the end.",
    "XOR": "Write (a) <> (b) with two conditions.",
    "&&": "Write AND.",
    "**": "Write power(x, n).",
    "~": "Write x RLIKE 'pattern'.",
    "WINDOW": "To group a stream by time, write GROUP BY TUMBLE(t, INTERVAL '10' MINUTE); in a batch job, write "
    "GROUP BY window(t, '10 minutes').",
    "TABLE": "Write the name of the table without TABLE. To group a stream by time, write "
    "GROUP BY TUMBLE(t, INTERVAL '10' MINUTE).",
    "#": "Begin a comment with --.",
    "AGAINST": "Write x LIKE '%word%'.",
    "PREWHERE": "Write WHERE.",
}
"""What to write instead of words and signs of other dialects, at or before an unexpected token."""
_KEYWORDS = (
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "ORDER",
    "HAVING",
    "LIMIT",
    "OFFSET",
    "UNION",
    "INTERSECT",
    "EXCEPT",
    "JOIN",
    "INNER",
    "LEFT",
    "RIGHT",
    "CROSS",
    "USING",
    "WITH",
    "DISTINCT",
    "QUALIFY",
    "WINDOW",
    "BETWEEN",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "LATERAL",
    "PIVOT",
    "UNPIVOT",
    "VALUES",
    "OVER",
    "PARTITION",
)
"""Words that a misspelled one may be."""


def describe_parse_error(error: ParseError, tokens: Sequence[Token]) -> tuple[str, int | None, int | None]:
    """Returns the message for `error`, with a hint where one is known, and its line and column."""
    facts = error.errors[0] if error.errors else {}
    line, column = facts.get("line"), facts.get("col")
    highlight = str(facts.get("highlight") or "")
    what = _message(str(facts.get("description") or "").rstrip("."), highlight)
    if isinstance(column, int):
        # sqlglot reports the last column of the token.
        column = max(1, column - len(highlight) + 1)
    if what.startswith("Expecting >"):
        unknown = _unknown_type(tokens, line, column)
        if unknown is not None:
            return f"'{unknown.text[:40]}' is not a type. The types are {_TYPES}.", unknown.line, _column(unknown)
    hint = _hint(tokens, line, column)
    return f"{what}.{f' {hint}' if hint else ''}", line, column


def _message(what: str, highlight: str) -> str:
    near = f" near '{highlight[:40]}'" if highlight else ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        part = missing.group(2)
        return f"An operand of {_OPERATORS.get(part) or _PARTS.get(part) or part.upper()} is missing{near}"
    if _TABLE.fullmatch(what):
        return f"A table name is missing{near}"
    if what in {"Expected TYPE after CAST", "Expected type"}:
        return f"'{highlight[:40]}' is not a type. The types are {_TYPES}"
    if highlight and what in {"", "Invalid expression / Unexpected token"}:
        return f"'{highlight[:40]}' is not expected here"
    return f"{what or 'The text cannot be parsed'}{near}"


def _unknown_type(tokens: Sequence[Token], line: object, column: object) -> Token | None:
    """Returns the token in place of a type inside ARRAY, MAP or STRUCT. The parser reports it, or the name of its field
    before it.
    """
    at = next((index for index, token in enumerate(tokens) if (token.line, _column(token)) == (line, column)), None)
    if at is None or at + 2 >= len(tokens):
        return None
    found = tokens[at + 2] if tokens[at + 1].text == ":" else tokens[at]
    if tokens[at + 1].text.isidentifier():
        found = tokens[at + 1]
    is_word = tokens[at].text.isidentifier() and found.text.isidentifier()
    return found if is_word and found.text.upper() not in _TYPES.split(", ") else None


def _hint(tokens: Sequence[Token], line: object, column: object) -> str:
    at = next((index for index, token in enumerate(tokens) if (token.line, _column(token)) == (line, column)), None)
    if at is None:
        return ""
    if tokens[at].token_type is TokenType.PLACEHOLDER and at and tokens[at - 1].end + 1 == tokens[at].start:
        return "For a field of JSON text, write get_json_object(x, '$.a')."
    if tokens[at].token_type is TokenType.PLACEHOLDER and tokens[at].text != "?":
        return _parameter_hint(tokens[at].text, tokens[at - 1].text.upper() if at else "")
    if tokens[at].token_type is TokenType.COLON:
        return "Write a parameter as :name, with letters (A to Z), digits and _, and no space after the colon."
    stars = tokens[max(at - 2, 0) : at]
    if [token.text for token in stars] == ["*", "*"] and stars[0].end + 1 == stars[1].start:
        return _DIALECT_HINTS["**"]
    for token in (tokens[at], *tokens[max(at - 1, 0) : at]):
        if token.text.upper() in _DIALECT_HINTS:
            return _DIALECT_HINTS[token.text.upper()]
    misspelled = _misspelled(tokens, at)
    if misspelled is not None:
        return misspelled
    name = _called_function(tokens[:at])
    if name == "WINDOW":
        return _DIALECT_HINTS[name]
    return f"Write {_COMMA_FORMS[name]}." if name in _COMMA_FORMS else ""


def _misspelled(tokens: Sequence[Token], at: int) -> str | None:
    """Returns the hint for a word at or before the unexpected token `at` that is nearly a keyword."""
    for token in (*tokens[max(at - 1, 0) : at], tokens[at]):
        word = token.text.upper()
        if word in {"GROUP", "ORDER", "PARTITION"}:
            return f"Write {word} BY."
        if token.token_type is TokenType.VAR and len(word) > 2:
            found = nearest_names(word, _KEYWORDS, 1, min_similarity=0.75)
            if found:
                return f"Did you mean {found[0]}?"
    return None


def _parameter_hint(placeholder: str, before: str) -> str:
    if before in {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}:
        name = placeholder.removeprefix(":")
        return f'Write {placeholder}, and its type in `parameters`: {{"{name}": {{"type": "{before}", "value": …}}}}.'
    return "A parameter stands for a value, not for a name, a type or a keyword."


def _column(token: Token) -> int:
    """Returns the column of a token's first character; sqlglot stores that of its last."""
    return token.col - (token.end - token.start)


def _called_function(tokens: Sequence[Token]) -> str:
    """Returns the word before the innermost parenthesis that `tokens` leave open."""
    depth = 0
    for index in range(len(tokens) - 1, 0, -1):
        depth += (tokens[index].token_type is TokenType.R_PAREN) - (tokens[index].token_type is TokenType.L_PAREN)
        if depth < 0:
            return tokens[index - 1].text.upper()
    return ""
