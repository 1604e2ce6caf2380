"""Replaces `range(a, b, step)` in FROM by a query that makes its rows: integers from `a` to before `b`, called `id`."""

from __future__ import annotations

from sqlglot import exp

from service.contract.query import RANGE_ROWS
from service.sql.expressions.nodes import Expression, Negation, Number
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.parser import Text
from service.sql.statements import trees

_MOST_ARGUMENTS = 3
_MOST_AT_ONCE = 10_000
"""Rows that one call of `explode` makes: the most elements of a `sequence` of literals."""
_PART = 1_000
_LARGEST = 2**63 - 1
_FORM = "Write range(10), range(1, 10) or range(1, 10, 2)."


def is_range(node: exp.Expr) -> bool:
    """Whether a node of FROM is a call of range."""
    call = node.this if isinstance(node, exp.Table) else None
    return isinstance(call, exp.Anonymous) and str(call.this).lower() == "range"


def with_ranges(select: exp.Select, source: Text) -> exp.Select:
    """Returns `select` with the calls of range in FROM replaced; `select` itself if there are none.

    Raises SpecError `unsupported_construct`, and `query_too_deep` for too many rows.
    """
    clause = select.args.get("from_")
    joins = select.args.get("joins") or []
    if clause is None or not any(is_range(part.this) for part in (clause, *joins)):
        return select
    select = select.copy()
    for part in (select.args["from_"], *(select.args.get("joins") or [])):
        if is_range(part.this):
            part.set("this", _query(part.this, source))
    return select


def _query(table: exp.Expr, source: Text) -> exp.Expr:
    at = position(table.this)
    start, stop, step = _bounds(table.this, source, at)
    rows = max(-((start - stop) // step), 0)
    if rows > RANGE_ROWS.most:
        raise source.beyond(RANGE_ROWS, rows, at=at)
    if not rows:
        query = exp.Select(expressions=[_named(_number(0))], where=exp.Where(this=exp.Boolean(this=False)))
    elif rows <= _MOST_AT_ONCE:
        last = start + (rows - 1) * step
        query = exp.Select(expressions=[_named(_sequence(start, last, step))])
    else:
        query = _in_parts(start, step, rows)
    others = {key: value for key, value in table.args.items() if key != "this" and value}
    return trees.placed(exp.Subquery(this=trees.placed(query, at), **others), at)


def _in_parts(start: int, step: int, rows: int) -> exp.Select:
    """Returns a query that makes the numbers of thousands, and each number of a thousand of them."""
    parts = exp.Select(expressions=[_named(_sequence(0, (rows - 1) // _PART, 1))])
    each = exp.Select(expressions=[_named(_sequence(0, _PART - 1, 1))])
    place = exp.Add(
        this=exp.Mul(this=exp.column("id", table="parts"), expression=_number(_PART)),
        expression=exp.column("id", table="each"),
    )
    value = exp.Add(this=_number(start), expression=exp.Mul(this=_number(step), expression=exp.Paren(this=place)))
    return exp.Select(
        expressions=[_named(value)],
        from_=trees.from_query(parts, "parts", ["id"]),
        joins=[exp.Join(this=trees.from_query(each, "each", ["id"]).this, kind="CROSS")],
        where=exp.Where(this=exp.LT(this=place.copy(), expression=_number(rows))),
    )


def _named(value: exp.Expr) -> exp.Alias:
    return exp.Alias(this=value, alias=trees.identifier("id"))


def _sequence(first: int, last: int, step: int) -> exp.Expr:
    return trees.call("EXPLODE", trees.call("SEQUENCE", _number(first), _number(last), _number(step)))


def _number(value: int) -> exp.Expr:
    """Returns a literal of the type BIGINT."""
    literal = exp.Literal(this=f"{abs(value)}L", is_string=False)
    return exp.Neg(this=literal) if value < 0 else literal


def _bounds(call: exp.Expr, source: Text, at: int | None) -> tuple[int, int, int]:
    """Returns the start, the end and the step."""
    if not 1 <= len(call.expressions) <= _MOST_ARGUMENTS:
        raise source.unsupported(f"range with {len(call.expressions)} arguments", at=at, hint=_FORM)
    reader = ExpressionReader(source, aggregates=False)
    values = []
    for argument in call.expressions:
        value = _integer(reader.read(argument))
        if value is None:
            place = position(argument)
            what = "An argument of range that is not an integer literal"
            raise source.unsupported(what, at=at if place is None else place, hint=_FORM)
        values.append(value)
    start, stop = (0, values[0]) if len(values) == 1 else (values[0], values[1])
    step = values[2] if len(values) == _MOST_ARGUMENTS else 1
    if step == 0:
        raise source.unsupported("The step 0 of range", at=at, hint="Write another step, such as 1.")
    return start, stop, step


def _integer(tree: Expression) -> int | None:
    is_negative = isinstance(tree, Negation)
    number = tree.operand if isinstance(tree, Negation) else tree
    if not isinstance(number, Number) or not number.text.isdecimal() or number.suffix not in {"", "L", "S", "Y"}:
        return None
    value = int(number.text[:20])
    if value > _LARGEST:
        return None
    return -value if is_negative else value
