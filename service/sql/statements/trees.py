"""Finds and builds parts of sqlglot's trees of queries: subqueries, terms of AND and OR, aggregate calls, columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from service.contract.query import AggregateFunction
from service.sql.expressions.calls import SYNONYMS
from service.sql.expressions.function_forms import WITH_UNITS
from service.sql.expressions.reader import position
from service.sql.parser import FIRST

AGGREGATES = frozenset(name.upper() for name in (*AggregateFunction, *SYNONYMS))
"""The names of aggregate functions, in upper case."""
COUNTS = frozenset({"COUNT", "COUNT_IF", "REGR_COUNT", "APPROX_COUNT_DISTINCT"})
"""Aggregates that are 0 without rows."""
LISTS = frozenset({"COLLECT_LIST", "COLLECT_SET", "ARRAY_AGG", "COLLECT_UNION"})
"""Aggregates that are empty arrays without rows; all others are NULL."""


_QUERIES = (exp.Exists, exp.Query)
_AROUND_CALLS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


def subqueries_in(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yields the outermost subqueries of an expression: IN, EXISTS, comparisons with ANY and ALL, and values."""
    if node is None:
        return
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, _QUERIES) or (isinstance(part, exp.In) and part.args.get("query")):
            yield part
        else:
            pending += list(part.iter_expressions())


def expressions_of(select: exp.Select) -> Iterator[exp.Expr]:
    """Yields the columns of a SELECT, and its clauses that may have subqueries."""
    yield from select.expressions
    for key in ("where", "group", "having", "qualify", "order"):
        if select.args.get(key) is not None:
            yield select.args[key]


def columns_in(node: exp.Expr) -> Iterator[exp.Column]:
    """Yields the columns of an expression, without those inside its subqueries."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Column) and not is_unit(part):
            yield part
        elif not isinstance(part, exp.Query):
            pending += list(part.iter_expressions())


def stars_in_arguments(node: exp.Expr) -> Iterator[exp.Star | exp.Column]:
    """Yields the stars among the arguments of calls, such as `hash(*)`, without those of its subqueries. COUNT(*) has
    none.
    """
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Query):
            continue
        pending += list(part.iter_expressions())[::-1]
        if isinstance(part, exp.Anonymous):
            yield from stars_of_call(part)


def stars_of_call(call: exp.Expr) -> Iterator[exp.Star | exp.Column]:
    """Yields the arguments of a call that are stars. COUNT(*) has none."""
    arguments = call.expressions
    counts_rows = len(arguments) == 1 and str(call.this).upper() == "COUNT"
    if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        counts_rows, arguments = False, arguments[0].expressions
    for argument in arguments:
        is_all = isinstance(argument, exp.Star) and not argument.args.get("except_")
        if is_star(argument) and not (counts_rows and is_all):
            yield argument


def stars_of(select: exp.Select) -> Iterator[exp.Star | exp.Column]:
    """Yields the stars of the columns of a SELECT: the columns that are stars, and the stars among arguments."""
    for item in select.expressions:
        if is_star(item):
            yield item
        else:
            yield from stars_in_arguments(item)


def is_star(node: exp.Expr) -> bool:
    """Whether `node` is `*` or `t.*`."""
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def is_unit(column: exp.Column) -> bool:
    """Whether sqlglot reads the unit of a call, such as DAY in `datediff(DAY, a, b)`, as the column."""
    call = column.parent
    if not isinstance(call, exp.Anonymous) or str(call.this).lower() not in WITH_UNITS:
        return False
    return len(call.expressions) == 3 and call.expressions[0] is column


def query_in(node: exp.Expr) -> exp.Expr:
    """Returns the query inside parentheses."""
    while isinstance(node, exp.Subquery) and not any(
        node.args.get(key) for key in ("order", "limit", "offset", "with_")
    ):
        node = node.this
    return node


def terms(node: exp.Expr | None, kind: type[exp.Expr]) -> list[exp.Expr]:
    """Returns the terms of a chain of AND or OR, from left to right, without parentheses around parts of the chain."""
    if node is None:
        return []
    found: list[exp.Expr] = []
    pending = [node]
    while pending:
        part = pending.pop()
        bare = part.unnest() if isinstance(part, exp.Paren) else part
        if isinstance(bare, kind):
            pending += [bare.args["expression"], bare.this]
        else:
            found.append(bare)
    return found


def chained(terms: Sequence[exp.Expr], kind: type[exp.Expr]) -> exp.Expr:
    """Returns the terms as a chain of AND or OR."""
    tree = enclosed(terms[0])
    for term in terms[1:]:
        tree = kind(this=tree, expression=enclosed(term))
    return tree


def enclosed(node: exp.Expr) -> exp.Expr:
    """Returns AND and OR in parentheses; other nodes as they are."""
    return exp.Paren(this=node) if isinstance(node, exp.And | exp.Or) else node


def factored(node: exp.Expr | None) -> list[exp.Expr]:
    """Returns the terms of an AND. Of an OR, terms that all its branches have come first, and the rest remains:
    `(k = o.k AND a) OR (k = o.k AND b)` is `k = o.k AND (a OR b)`.
    """
    found: list[exp.Expr] = []
    for term in terms(node, exp.And):
        branches = [terms(branch, exp.And) for branch in terms(term, exp.Or)]
        common = [part for part in dict.fromkeys(branches[0]) if all(part in branch for branch in branches[1:])]
        if len(branches) == 1 or not common:
            found.append(term)
            continue
        found += common
        rests = [[part for part in branch if part not in common] for branch in branches]
        if all(rests):
            found.append(chained([chained(rest, exp.And) for rest in rests], exp.Or))
    return found


def without_not(node: exp.Expr) -> tuple[exp.Expr, bool]:
    """Returns `node` without NOT and parentheses around it, and whether they negate it."""
    is_negated = False
    while isinstance(node, exp.Not | exp.Paren):
        is_negated ^= isinstance(node, exp.Not)
        node = node.this
    return node, is_negated


def inverted(node: exp.Expr) -> exp.Expr | None:
    """Returns NOT (a AND b) as NOT a OR NOT b, NOT (a OR b) as NOT a AND NOT b, and NOT NOT a as a, as Spark's
    optimizer does; None for another expression.
    """
    inner = node.this.unnest() if isinstance(node, exp.Not) else None
    if isinstance(inner, exp.Not):
        return exp.Paren(this=inner.this)
    if not isinstance(inner, exp.And | exp.Or):
        return None
    left, right = (exp.Paren(this=exp.Not(this=exp.Paren(this=side))) for side in (inner.left, inner.right))
    other = exp.Or if isinstance(inner, exp.And) else exp.And
    return exp.Paren(this=other(this=left, expression=right))


def as_in(node: exp.Expr) -> tuple[exp.Expr, bool]:
    """Returns `x = ANY (…)` as `x IN (…)`, and `x <> ALL (…)` as the same with True: negated."""
    right = node.args.get("expression")
    if isinstance(node, exp.EQ) and isinstance(right, exp.Any) and isinstance(query_in(right.this), exp.Query):
        return placed(exp.In(this=node.this, query=exp.Subquery(this=query_in(right.this))), position(node)), False
    if isinstance(node, exp.NEQ) and isinstance(right, exp.All) and isinstance(query_in(right.this), exp.Query):
        return placed(exp.In(this=node.this, query=exp.Subquery(this=query_in(right.this))), position(node)), True
    return node, False


def rows_of(query: exp.Select, own: Sequence[exp.Expr], expressions: list[exp.Expr]) -> exp.Select:
    """Returns `query` with other columns and only the conditions `own`."""
    rows = query.copy()
    for key in ("group", "having", "order", "limit", "offset", "distinct"):
        rows.set(key, None)
    rows.set("expressions", expressions)
    rows.set("where", exp.Where(this=chained([term.copy() for term in own], exp.And)) if own else None)
    return rows


def is_aggregated(select: exp.Select) -> bool:
    """Whether a SELECT has GROUP BY or aggregate calls."""
    parts = [*select.expressions, *(select.args.get(key) for key in ("having", "qualify", "order"))]
    return bool(select.args.get("group")) or any(True for part in parts if part is not None for _ in calls_in(part))


def has_over(node: exp.Expr) -> bool:
    """Whether an expression has a call with OVER, outside of its subqueries."""
    return any(isinstance(part, exp.Window) for part in node.walk(prune=lambda part: isinstance(part, exp.Query)))


def remove_empty_group_by_all(tree: exp.Expr) -> None:
    """Removes GROUP BY ALL of the queries in `tree` where it has no keys: each column of SELECT has an aggregate or a
    call with OVER. Such a query has the same rows as one without GROUP BY.
    """
    for group in list(tree.find_all(exp.Group)):
        select = group.parent
        if not isinstance(select, exp.Select) or [key for key, value in group.args.items() if value] != ["all"]:
            continue
        if all(has_over(item) or any(True for _ in calls_in(item)) for item in select.expressions):
            select.set("group", None)


def has_grouping_sets(select: exp.Select) -> bool:
    """Whether GROUP BY has ROLLUP, CUBE or GROUPING SETS."""
    group = select.args.get("group")
    if group is None:
        return False
    after = any(group.args.get(key) for key in ("rollup", "cube", "grouping_sets", "totals"))
    return after or any(isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets) for key in group.expressions)


def is_one_row(query: exp.Select) -> bool:
    """Whether a query returns exactly one row: aggregates without GROUP BY."""
    limits = ("group", "having", "limit", "offset", "qualify")
    return not any(query.args.get(key) for key in limits) and any(
        True for item in query.expressions for _ in calls_in(item)
    )


def calls_in(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yields the aggregate calls of an expression, without those in its subqueries."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Window):
            # Its function is not an aggregate of the query, but may have one as an argument.
            pending += [each for each in part.iter_expressions() if each is not part.this]
            pending += list(_without_clauses(part.this).iter_expressions())
        elif function_of(part) in AGGREGATES:
            yield part
        elif not isinstance(part, exp.Query):
            pending += list(part.iter_expressions())


def function_of(node: exp.Expr) -> str | None:
    """Returns the name of the called function in upper case; None if `node` is not a call."""
    node = _without_clauses(node)
    return str(node.this).upper() if isinstance(node, exp.Anonymous) else None


def _without_clauses(node: exp.Expr) -> exp.Expr:
    """Returns a call without the clauses after its parentheses."""
    while isinstance(node, _AROUND_CALLS):
        node = node.this
    return node


def without_rows(aggregate: exp.Expr, column: exp.Column) -> exp.Expr:
    """Returns the value of `aggregate`, which `column` has for a key with rows, also for a key without rows."""
    function = function_of(aggregate)
    if function in COUNTS:
        return call("COALESCE", column, number(0))
    return call("COALESCE", column, call("ARRAY")) if function in LISTS else column


def mapped_calls(node: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Returns `node` with `change` applied to its aggregate calls."""
    return mapped(node, lambda part: change(part) if function_of(part) in AGGREGATES else part)


def mapped(node: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Returns `node` with `change` applied to each of its parts, outermost first; changed parts are not visited."""
    changed = change(node)
    if changed is not node or isinstance(node, exp.Query):
        return changed
    for key, value in list(node.args.items()):
        if isinstance(value, exp.Expr):
            node.set(key, mapped(value, change))
        elif isinstance(value, list):
            node.set(key, [mapped(part, change) if isinstance(part, exp.Expr) else part for part in value])
    return node


def mapped_window(
    window: exp.Window, change: Callable[[exp.Expr], exp.Expr], partition_by: Sequence[exp.Expr] = ()
) -> exp.Expr:
    """Returns a copy of a call with OVER with `change` applied to its arguments and to the parts of its window, but not
    to the call, which may have the name of an aggregate; `partition_by` are more keys of its partitions.
    """
    changed = window.copy()
    _map_arguments(changed, change)
    keys = [*(changed.args.get("partition_by") or []), *(key.copy() for key in partition_by)]
    changed.set("partition_by", keys)
    return changed


def _map_arguments(node: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> None:
    for key, value in list(node.args.items()):
        if isinstance(value, list):
            node.set(key, [change(part) if isinstance(part, exp.Expr) else part for part in value])
        elif isinstance(value, exp.Expr) and key == "this" and not isinstance(node, exp.Anonymous):
            _map_arguments(value, change)
        elif isinstance(value, exp.Expr):
            node.set(key, change(value))


def from_query(query: exp.Expr, alias: str, columns: Sequence[str]) -> exp.From:
    """Returns FROM of a derived table."""
    names = [identifier(name) for name in columns]
    table = exp.TableAlias(this=identifier(alias), columns=names)
    return exp.From(this=placed(exp.Subquery(this=query.copy(), alias=table), position(query)))


def call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """Returns the call of a function."""
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def identifier(name: str) -> exp.Identifier:
    """Returns a quoted name."""
    return exp.to_identifier(name, quoted=True)


def is_null(node: exp.Expr) -> exp.Is:
    """Returns the condition `node IS NULL`."""
    return exp.Is(this=node.copy(), expression=exp.Null())


def may_equal(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Returns the condition that two values are equal, or that one of them is NULL."""
    either = exp.Or(this=is_null(left), expression=is_null(right))
    return exp.Or(this=exp.EQ(this=left.copy(), expression=right.copy()), expression=either)


def number(value: int) -> exp.Expr:
    """Returns a literal."""
    return exp.Literal.number(value)


def column(alias: str, name: str, at: int | None = None) -> exp.Column:
    """Returns the column `alias.name`."""
    column = exp.Column(this=identifier(name), table=identifier(alias))
    placed(column, at)
    return column


def placed(node: exp.Expr, at: int | None) -> exp.Expr:
    """Returns `node` with an offset in the text, for errors."""
    if at is not None:
        node.meta["start"] = node.meta[FIRST] = at
    return node


def selected_keys(select: exp.Select) -> set[int]:
    """Returns the indexes of the columns of SELECT by which GROUP BY groups: by number, by alias, or ALL."""
    group = select.args.get("group")
    keys = list(group.expressions) if group is not None else []
    if group is not None and group.args.get("all"):
        return {index for index, item in enumerate(select.expressions) if not any(True for _ in calls_in(item))}
    numbers = {int(key.name) - 1 for key in keys if isinstance(key, exp.Literal) and key.name.isdecimal()}
    names = {key.name.casefold() for key in keys if isinstance(key, exp.Column) and not key.table}
    aliases = (item.alias.casefold() for item in select.expressions)
    return numbers | {index for index, alias in enumerate(aliases) if alias and alias in names}


def has_subquery(node: exp.Expr | None) -> bool:
    """Whether an expression has a subquery."""
    return next(subqueries_in(node), None) is not None


def counted(query: exp.Expr, alias: str, function: str) -> exp.Select:
    """Returns a query of one row: the number of rows of `query`, and an aggregate of its only column."""
    name = f"{alias}_1"
    calls = [call("COUNT", exp.Star()), call(function, column(alias, name))]
    return exp.Select(expressions=calls, from_=from_query(query, alias, [name]))
