"""What the parser says of a text that it cannot read, in words that tell the reader where to look and what to write."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from service.spec.constructs import ARITHMETIC, COMPARISONS
from service.spec.types import TypeName

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
_TYPES = ", ".join(name.value for name in TypeName if name not in {TypeName.NULL, TypeName.OTHER})
_BY_COMMAS = {
    "SUBSTRING": "substring(x, 1, 2)",
    "SUBSTR": "substring(x, 1, 2)",
    "TRIM": "trim(' ' FROM x) as btrim(x, ' '), or ltrim and rtrim",
    "OVERLAY": "concat(left(x, 2), 'new', substring(x, 5))",
    "CEIL": "ceil(x, 1)",
    "FLOOR": "floor(x, 1)",
    "LISTAGG": "LISTAGG(x, ',') WITHIN GROUP (ORDER BY t)",
}
"""Functions whose arguments other dialects part by words, and how they are written here."""
_FOREIGN = {
    "TOP": "Write LIMIT at the end.",
    "XOR": "Write a <> b of two conditions.",
    "&&": "Write AND.",
    "**": "Write power(x, n).",
    "~": "Write x RLIKE 'pattern'.",
    "WINDOW": "To group by time write GROUP BY TUMBLE(t, INTERVAL '10' MINUTE) over a stream, else GROUP BY "
    "date_trunc('hour', t).",
    "TABLE": "A table is its name alone. To group a stream by time write GROUP BY TUMBLE(t, INTERVAL '10' MINUTE).",
    "#": "A comment begins with --.",
    "AGAINST": "Write x LIKE '%word%'.",
    "PREWHERE": "Write WHERE.",
}
"""Words and signs of other dialects in front of what cannot be read, or there."""
_ENDS = frozenset(
    {
        TokenType.R_PAREN,
        TokenType.R_BRACKET,
        TokenType.COMMA,
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.ORDER_BY,
        TokenType.UNION,
    }
)
_DEMANDING = frozenset({TokenType.COMMA, TokenType.ON, TokenType.ALIAS})
"""Behind these something has to stand; the parser takes their absence for nothing, or for TRUE."""


_ORDER = {
    TokenType.JOIN: 1,
    TokenType.WHERE: 2,
    TokenType.GROUP_BY: 3,
    TokenType.HAVING: 4,
    TokenType.ORDER_BY: 5,
    TokenType.LIMIT: 6,
}
_BEGINNINGS = frozenset({TokenType.SELECT, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT})


def dangling(tokens: Sequence[Token]) -> Token | None:
    """The first comma, ON or AS with nothing behind it."""
    for index, token in enumerate(tokens):
        if token.token_type not in _DEMANDING:
            continue
        if index + 1 == len(tokens) or tokens[index + 1].token_type in _ENDS:
            return token
    return None


def misplaced(tokens: Sequence[Token]) -> tuple[Token, str] | None:
    """The first clause of a SELECT that stands behind one that comes after it, and what to say; the parser takes any
    order.
    """
    latest: list[Token | None] = [None]
    for index, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            latest.append(None)
        elif token.token_type is TokenType.R_PAREN and len(latest) > 1:
            latest.pop()
        elif token.token_type in _BEGINNINGS:
            latest[-1] = None
        elif token.token_type in _ORDER and not _is_name(tokens, index):
            before = latest[-1]
            if before is not None and _ORDER[before.token_type] > _ORDER[token.token_type]:
                order = ", ".join(type_.name.replace("_", " ") for type_ in _ORDER)
                return token, f"{token.text.upper()} stands behind {before.text.upper()}; the order is FROM, {order}."
            latest[-1] = token
    return None


def _is_name(tokens: Sequence[Token], index: int) -> bool:
    """Whether LIMIT is a name here: as a clause a number follows."""
    if tokens[index].token_type is not TokenType.LIMIT:
        return False
    return index + 1 == len(tokens) or tokens[index + 1].token_type is not TokenType.NUMBER


def what_is_wrong(error: ParseError, tokens: Sequence[Token]) -> tuple[str, int | None, int | None]:
    """What is wrong, with what to write where that is known, and line and column of it."""
    facts = error.errors[0] if error.errors else {}
    line, column = facts.get("line"), facts.get("col")
    highlight = str(facts.get("highlight") or "")
    what = _in_words(str(facts.get("description") or "").rstrip("."), highlight)
    if isinstance(column, int):
        # sqlglot counts to the end of the token.
        column = max(1, column - len(highlight) + 1)
    hint = _hint(tokens, line, column)
    return f"{what}.{f' {hint}' if hint else ''}", line, column


def _in_words(what: str, highlight: str) -> str:
    near = f" near '{highlight[:40]}'" if highlight else ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        part = missing.group(2)
        return f"An operand of {_OPERATORS.get(part) or _PARTS.get(part) or part.upper()} is missing{near}"
    if _TABLE.fullmatch(what):
        return f"The name of a table is missing{near}"
    if what in {"Expected TYPE after CAST", "Expected type"}:
        return f"'{highlight[:40]}' is no type; there are {_TYPES}"
    if highlight and what in {"", "Invalid expression / Unexpected token"}:
        return f"'{highlight[:40]}' is not expected here"
    return f"{what or 'The text cannot be read'}{near}"


def _hint(tokens: Sequence[Token], line: object, column: object) -> str:
    at = next((index for index, token in enumerate(tokens) if (token.line, _column(token)) == (line, column)), None)
    if at is None:
        return ""
    if [token.text for token in tokens[max(at - 2, 0) : at]] == ["*", "*"]:
        return _FOREIGN["**"]
    for token in (tokens[at], *tokens[max(at - 1, 0) : at]):
        if token.text.upper() in _FOREIGN:
            return _FOREIGN[token.text.upper()]
    name = _called(tokens[:at])
    if name == "WINDOW":
        return _FOREIGN[name]
    return f"Write {_BY_COMMAS[name]}." if name in _BY_COMMAS else ""


def _column(token: Token) -> int:
    """The column of the first character of a token, which sqlglot counts to its last."""
    return token.col - (token.end - token.start)


def _called(tokens: Sequence[Token]) -> str:
    """The word in front of the innermost parenthesis that `tokens` leave open."""
    depth = 0
    for index in range(len(tokens) - 1, 0, -1):
        depth += (tokens[index].token_type is TokenType.R_PAREN) - (tokens[index].token_type is TokenType.L_PAREN)
        if depth < 0:
            return tokens[index - 1].text.upper()
    return ""
