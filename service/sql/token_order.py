"""Finds clauses in the wrong order, and commas and keywords that nothing follows: sqlglot accepts both."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

_END_TOKENS = frozenset(
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
_NEED_OPERAND = frozenset({TokenType.COMMA, TokenType.ON, TokenType.ALIAS})
"""Tokens that must be followed by something; sqlglot accepts them without, and reads a missing condition as TRUE."""

_CLAUSE_ORDER = {
    TokenType.JOIN: 1,
    TokenType.WHERE: 2,
    TokenType.GROUP_BY: 3,
    TokenType.HAVING: 4,
    TokenType.ORDER_BY: 5,
    TokenType.LIMIT: 6,
    # Spark and the standard have different orders.
    TokenType.OFFSET: 6,
    TokenType.FETCH: 6,
}
_QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT})


def dangling(tokens: Sequence[Token]) -> Token | None:
    """Returns the first comma, ON or AS that nothing follows."""
    for index, token in enumerate(tokens):
        if token.token_type not in _NEED_OPERAND:
            continue
        if index + 1 == len(tokens) or tokens[index + 1].token_type in _END_TOKENS:
            return token
    return None


def misplaced(tokens: Sequence[Token]) -> tuple[Token, str] | None:
    """Returns the first clause of a SELECT that is in the wrong order, and the message; sqlglot accepts any order."""
    latest: list[Token | None] = [None]
    for index, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            latest.append(None)
        elif token.token_type is TokenType.R_PAREN and len(latest) > 1:
            latest.pop()
        elif token.token_type in _QUERY_STARTS:
            latest[-1] = None
        elif token.token_type in _CLAUSE_ORDER and not _is_name(tokens, index):
            before = latest[-1]
            if before is not None and _CLAUSE_ORDER[before.token_type] > _CLAUSE_ORDER[token.token_type]:
                order = ", ".join(type_.name.replace("_", " ") for type_ in _CLAUSE_ORDER)
                clause, other = token.text.upper(), before.text.upper()
                return token, f"{clause} must come before {other}. The order of clauses is FROM, {order}."
            latest[-1] = token
    return None


def _is_name(tokens: Sequence[Token], index: int) -> bool:
    """Whether the token is a column called `limit`, `offset` or `fetch`: a clause continues with a number or FIRST."""
    if tokens[index].token_type not in {TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH}:
        return False
    after = {TokenType.NUMBER, TokenType.PLACEHOLDER}
    if tokens[index].token_type is TokenType.FETCH:
        after = {TokenType.FIRST, TokenType.NEXT}
    return index + 1 == len(tokens) or tokens[index + 1].token_type not in after
