"""Reads LIMIT, OFFSET and FETCH of one query."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.contract.query import MAX_LIMIT
from service.sql.expressions.nodes import Number
from service.sql.expressions.reader import ExpressionReader, placeholder, position
from service.sql.parser import Text, place_of


def read_limit(select: exp.Expr, source: Text) -> int | None:
    """Returns the number of LIMIT, or that of FETCH FIRST. Raises SpecError `unsupported_construct`,
    `limit_out_of_range`.
    """
    clause = select.args.get("limit")
    if clause is None:
        return None
    if isinstance(clause, exp.Fetch):
        return _fetched(clause, select, source)
    ExpressionReader(source, aggregates=False).check_clauses(clause)
    value = clause.expression
    if isinstance(value, exp.Var) and value.name.upper() == "ALL":
        return None
    return _number(value, select, source, TokenType.LIMIT)


def read_offset(select: exp.Expr, source: Text) -> int:
    """Returns the number of OFFSET, 0 if there is none. Raises SpecError as `read_limit` does."""
    clause = select.args.get("offset")
    if clause is None:
        return 0
    ExpressionReader(source, aggregates=False).check_clauses(clause)
    return _number(clause.expression, select, source, TokenType.OFFSET)


def _fetched(clause: exp.Fetch, select: exp.Expr, source: Text) -> int:
    options = clause.args.get("limit_options")
    if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
        at = place_of(source, TokenType.FETCH, position(select))
        hint = "Write FETCH FIRST 10 ROWS ONLY, or QUALIFY RANK() OVER (ORDER BY t) <= 10 for ties."
        raise source.unsupported("FETCH with PERCENT or WITH TIES", at=at, hint=hint)
    count = clause.args.get("count")
    return 1 if count is None else _number(count, select, source, TokenType.FETCH)


def _number(value: exp.Expr, select: exp.Expr, source: Text, keyword: TokenType) -> int:
    if isinstance(value, exp.Placeholder):
        return _number_of(value, source, keyword)
    if is_whole(value) and len(value.name) <= 20 and int(value.name) <= MAX_LIMIT:
        return int(value.name)
    # Only for errors, since it scans all tokens of the text.
    at = place_of(source, keyword, position(select))
    if not is_whole(value):
        raise source.unsupported(f"{keyword.name} with an expression", at=at, hint="Write a whole number.")
    raise source.error("limit_out_of_range", f"{keyword.name} must be at most {MAX_LIMIT}.", at=at)


def _number_of(node: exp.Placeholder, source: Text, keyword: TokenType) -> int:
    value = ExpressionReader(source, aggregates=False).read(node)
    if not isinstance(value, Number) or not value.is_integer:
        raise source.unsupported(
            f"The value of {placeholder(node)}",
            at=position(node),
            hint=f"Give {keyword.name} a whole number of 0 or more.",
        )
    if int(value.text) > MAX_LIMIT:
        raise source.error("limit_out_of_range", f"{keyword.name} must be at most {MAX_LIMIT}.", at=position(node))
    return int(value.text)


def is_whole(node: exp.Expr) -> bool:
    """Whether `node` is a number without a sign or a decimal point."""
    return isinstance(node, exp.Literal) and not node.is_string and node.name.isascii() and node.name.isdigit()
