"""Finds the lowest version of the job format whose workers support a query.

`CONSTRUCTS` is the table of what versions added to the syntax of SQL. `FUNCTIONS_BEFORE_12` are the functions of
version 11 and earlier. What both miss is found in the structured query and in the bound one: joins without an equality,
aggregates, rows of constants (VALUES, DESCRIBE), and nested values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from service.contract.query import (
    AggregateCall,
    AggregateFunction,
    JoinKind,
    Query,
    UnionRef,
    ValuesRef,
    queries_in,
    sources_in,
)
from service.sql.bit_operators import SHIFT
from service.sql.checks.nested_values import joins_by_nested_values, uses_nested_values, uses_new_nested_values
from service.sql.expressions.calls import SYNONYMS
from service.sql.expressions.interval_spans import units_of
from service.sql.resolve.bound import BoundQuery
from service.sql.statements import trees
from service.sql.statements.clauses.aliases import ALIASES
from service.sql.statements.clauses.star_except import FIELDS_LEFT_OUT
from service.sql.statements.recursion import refers_to
from service.sql.statements.session_windows import SESSION_WINDOWS
from service.sql.statements.subqueries.computed_first import COMPUTED_FIRST
from service.sql.statements.subqueries.correlated_values import CLAUSES_OF_ROWS, CORRELATED
from service.sql.statements.subqueries.domain import DOMAIN
from service.sql.statements.subqueries.join_subqueries import MARKED
from service.sql.statements.subqueries.lateral_generators import GENERATED
from service.sql.statements.tables.generators import is_generator
from service.sql.statements.tables.ranges import is_range
from service.sql.statements.tables.time_windows import CUMULATIVE_WINDOWS, TIME_WINDOWS
from service.sql.statements.tables.wrapping import WRAPPED
from service.sql.statements.trees import has_subquery, is_aggregated
from service.sql.types.aggregates import SKETCHES
from service.sql.types.document_functions import DOCUMENT_GROUPS, SKETCH_GROUPS

_FIRST = 3
"""The version of batch jobs with the oldest constructs."""
_LARGE_QUERIES = 9
_SUBQUERIES = 11
_MORE_SQL = 12
_LATERAL = 13
_STARS = 14
_ANALYSTS = 15
_ALL_QUERIES = 16
_MORE_FUNCTIONS = 17
_MORE_ARGUMENTS = 18
_WINDOWS = 22
REPEATED_NAMES_VERSION = _MORE_SQL
"""The version that numbers equal names among the columns of a star."""

_MAX_BEFORE_9 = 32
"""The limit of joins in one query, and of branches of a UNION, before version 9."""
_MAX_CHARACTERS_BEFORE_9 = 10_000
"""SQL up to this length was within all other limits before version 9."""

_SCALARS_BEFORE_12 = """
    abs acos add_months ascii asin atan atan2 bit_length bround btrim cbrt ceil ceiling char_length character_length
    coalesce concat concat_ws contains cos cosh crc32 current_date current_timestamp date date_format date_sub
    date_trunc day dayofmonth dayofweek dayofyear degrees endswith exp expm1 floor from_unixtime greatest hash hex hour
    hypot if ifnull initcap instr isnan isnotnull isnull last_day lcase least left length ln locate log log10 log1p
    log2 lower ltrim make_date md5 minute mod month negative next_day now nullif nvl nvl2 octet_length pmod positive
    pow power quarter radians raise_error replace reverse right rint round rtrim second sha sha1 sha2 sign signum sin
    sinh split_part sqrt startswith substr substring tan tanh timestamp_seconds to_date to_timestamp to_unix_timestamp
    translate trim trunc ucase unix_timestamp upper weekday weekofyear xxhash64 year
    tumble hop tumble_start tumble_end hop_start hop_end
"""
_OVER_BEFORE_12 = """
    row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value first_value last_value
    count sum avg mean min max var_pop var_samp variance stddev_pop stddev_samp stddev std
"""
FUNCTIONS_BEFORE_12 = frozenset(_SCALARS_BEFORE_12.split())
"""Scalar functions whose calls version 11 supports in all the forms that version 12 does."""
_ARGUMENTS_BEFORE_12: Mapping[str, int] = {
    "date_add": 2,
    "dateadd": 2,
    "date_diff": 2,
    "datediff": 2,
    "levenshtein": 2,
    "lpad": 3,
    "months_between": 2,
    "position": 2,
    "regexp_extract": 3,
    "regexp_replace": 3,
    "rpad": 3,
}
"""The other scalar functions of version 11, with the number of arguments that it supports."""
_WINDOW_FUNCTIONS_BEFORE_12 = frozenset(_OVER_BEFORE_12.split())
_AGGREGATES = frozenset(name.lower() for name in (*AggregateFunction, *SYNONYMS))
"""The names of aggregates: the structured query has what they mean."""
_PARTS_BEFORE_12 = frozenset(
    {"DAY", "DAYOFWEEK", "DOY", "HOUR", "MINUTE", "MONTH", "QUARTER", "SECOND", "WEEK", "YEAR"}
)
"""The parts of EXTRACT that version 11 supports."""
_AGGREGATES_BEFORE_12 = frozenset(
    {
        AggregateFunction.COUNT,
        AggregateFunction.SUM,
        AggregateFunction.AVG,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.FIRST_VALUE,
        AggregateFunction.LAST_VALUE,
        AggregateFunction.VAR_POP,
        AggregateFunction.VAR_SAMP,
        AggregateFunction.STDDEV_POP,
        AggregateFunction.STDDEV_SAMP,
        AggregateFunction.LISTAGG,
        AggregateFunction.APPROX_COUNT_DISTINCT,
        AggregateFunction.PERCENTILE,
        AggregateFunction.GROUPING,
        AggregateFunction.GROUPING_ID,
    }
)
_AGGREGATES_OF_17 = SKETCHES | {
    AggregateFunction.HISTOGRAM_NUMERIC,
    AggregateFunction.APPROX_TOP_K,
    AggregateFunction.COLLECT_UNION,
    AggregateFunction.VECTOR_AVG,
    AggregateFunction.VECTOR_SUM,
}
_ORDERED = frozenset({AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE, AggregateFunction.LISTAGG})


def _always(_node: exp.Expr) -> bool:
    return True


@dataclass(frozen=True)
class Construct:
    """A construct of SQL, and the version that added it: a node of one of `types` for which `holds` is true."""

    name: str
    version: int
    types: tuple[type[exp.Expr], ...]
    holds: Callable[[exp.Expr], bool] = _always


def _is_in_expression(query: exp.Expr) -> bool:
    around = query.parent
    while isinstance(around, exp.Subquery):
        around = around.parent
    return not (around is None or isinstance(around, exp.From | exp.Join | exp.CTE | exp.SetOperation | exp.Lateral))


def _calls_new_function(node: exp.Expr) -> bool:
    name = str(node.this).lower() if isinstance(node.this, str) else ""
    if _is_over(node):
        return name not in _WINDOW_FUNCTIONS_BEFORE_12
    if name in _ARGUMENTS_BEFORE_12:
        return len(node.expressions) != _ARGUMENTS_BEFORE_12[name]
    return name not in FUNCTIONS_BEFORE_12 and name not in _AGGREGATES


def _is_over(node: exp.Expr) -> bool:
    inner: exp.Expr | None = node
    while inner is not None and isinstance(inner.parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        inner = inner.parent
    return inner is not None and isinstance(inner.parent, exp.Window) and inner.parent.this is inner


def _changes_named_window(window: exp.Expr) -> bool:
    changes = any(window.args.get(key) for key in ("partition_by", "order", "spec"))
    return window.args.get("alias") is not None and changes and isinstance(window.this, exp.Func)


def _is_shift(call: exp.Expr) -> bool:
    return bool(call.meta.get(SHIFT))


def _is_query_after_lateral(lateral: exp.Expr) -> bool:
    return isinstance(lateral.this, exp.Subquery | exp.Unnest)


def _is_star_of_structure(column: exp.Expr) -> bool:
    """Whether a column is a star of what is no table of the query."""
    if not isinstance(column, exp.Column) or not isinstance(column.this, exp.Star):
        return False
    select = column.find_ancestor(exp.Select)
    if select is None or len(column.parts) > 2:
        return True
    joined = [select.args.get("from_"), *(select.args.get("joins") or [])]
    tables = [*(part.this for part in joined if part is not None), *(select.args.get("laterals") or [])]
    return all(table.alias_or_name.lower() != column.table.lower() for table in tables)


def _has_except(star: exp.Expr) -> bool:
    return bool(star.args.get("except_"))


def _leaves_fields_out(column: exp.Expr) -> bool:
    return _is_star_of_structure(column) and _has_except(column.this)


def _has_patterns(like: exp.Expr) -> bool:
    return isinstance(like.expression, exp.Any | exp.All)


def _names_earlier_columns(lateral: exp.Expr) -> bool:
    """Whether a query after LATERAL reads a column, perhaps of an earlier table, that is called as one of its own."""
    query = lateral.this.this if isinstance(lateral.this, exp.Subquery) else None
    if not isinstance(query, exp.Select) or query.args.get("from_") is None:
        return False
    alias = lateral.args.get("alias")
    named = [item.alias for item in query.expressions if item.alias]
    named += [column.name for column in (alias.args.get("columns") or [] if alias is not None else [])]
    read = {column.name.casefold() for column in query.find_all(exp.Column) if not column.table}
    return any(name.casefold() in read for name in named)


def _has_several_recursions(with_: exp.Expr) -> bool:
    ctes = with_.expressions if with_.args.get("recursive") else []
    return sum(refers_to(cte.this, cte.alias) for cte in ctes) > 1


_COMPARING = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between)


def _is_row_value(row: exp.Expr) -> bool:
    around = row.parent
    if isinstance(around, exp.In):
        return not around.args.get("query") and around.find_ancestor(exp.Pivot) is None
    return isinstance(around, (exp.Select, exp.Alias, exp.Anonymous, *_COMPARING))


def _is_of_aggregate(call: exp.Expr) -> bool:
    return not _is_over(call.this)


def _has_column_names(table: exp.Expr) -> bool:
    alias = table.args.get("alias")
    return alias is not None and bool(alias.args.get("columns")) and isinstance(table.this, exp.Identifier)


def _is_in_parentheses(subquery: exp.Expr) -> bool:
    return isinstance(subquery.this, exp.Table) or bool(subquery.args.get("joins"))


def _computes_bounds(call: exp.Expr) -> bool:
    """Whether a call of `sequence` has other arguments than literals."""
    if str(call.this).lower() != "sequence":
        return False
    bare = [part.this if isinstance(part, exp.Neg | exp.Cast) else part for part in call.expressions]
    return not all(isinstance(part, exp.Literal | exp.Interval) for part in bare)


_NEW_IN_17 = """
    make_interval try_make_interval make_dt_interval make_ym_interval sentences
"""
_FUNCTIONS_OF_17 = frozenset(
    [*_NEW_IN_17.split(), *(name for group in (*DOCUMENT_GROUPS.values(), *SKETCH_GROUPS.values()) for name in group)]
)


def _calls_function_of_17(call: exp.Expr) -> bool:
    return str(call.this).lower() in _FUNCTIONS_OF_17


_SWITCHES = {"any_value": 1, "first_value": 1, "last_value": 1, "nth_value": 2}
"""By function, the position of an argument that says whether it ignores NULLs."""


def _has_switch(call: exp.Expr) -> bool:
    name = str(call.this).lower()
    if _is_over(call) and name in {"any_value", "first", "last"}:
        return True
    return len(call.expressions) - 1 == _SWITCHES.get(name) and isinstance(call.expressions[-1], exp.Boolean)


def _has_star(call: exp.Expr) -> bool:
    return next(trees.stars_of_call(call), None) is not None


def _counts_several(call: exp.Expr) -> bool:
    return str(call.this).upper() == "COUNT" and len(call.expressions) > 1


def _explodes_groups(select: exp.Expr) -> bool:
    """Whether a SELECT has a generator next to aggregates or calls with OVER."""
    if not isinstance(select, exp.Select) or not any(is_generator(item.unalias()) for item in select.expressions):
        return False
    return is_aggregated(select) or any(item.find(exp.Window) for item in select.expressions)


def _has_distribution(select: exp.Expr) -> bool:
    return any(select.args.get(key) for key in ("sort", "cluster", "distribute"))


CONSTRUCTS = (
    Construct("a subquery in an expression", _SUBQUERIES, (exp.Select, exp.Union), _is_in_expression),
    Construct("INTERSECT and EXCEPT", _SUBQUERIES, (exp.Intersect, exp.Except)),
    Construct("OVER", _SUBQUERIES, (exp.Window,)),
    Construct("QUALIFY", _SUBQUERIES, (exp.Qualify,)),
    Construct("the function raise_error", _SUBQUERIES, (exp.Anonymous,), lambda call: call.name == "raise_error"),
    Construct("SELECT without FROM", _MORE_SQL, (exp.Select,), lambda select: select.args.get("from_") is None),
    Construct("VALUES", _MORE_SQL, (exp.Values,)),
    Construct("OFFSET", _MORE_SQL, (exp.Offset,)),
    Construct("FETCH", _MORE_SQL, (exp.Fetch,)),
    Construct("PIVOT and UNPIVOT", _MORE_SQL, (exp.Pivot,)),
    Construct("NATURAL JOIN", _MORE_SQL, (exp.Join,), lambda join: bool(join.args.get("method"))),
    Construct("GROUP BY ALL", _MORE_SQL, (exp.Group,), lambda group: bool(group.args.get("all"))),
    Construct("ORDER BY ALL", _MORE_SQL, (exp.Ordered,), lambda key: isinstance(key.this, exp.Var)),
    Construct("a named window with more clauses", _MORE_SQL, (exp.Window,), _changes_named_window),
    Construct("more parts in EXTRACT", _MORE_SQL, (exp.Extract,), lambda x: x.name.upper() not in _PARTS_BEFORE_12),
    Construct("calls with words", _MORE_SQL, (exp.Anonymous,), lambda call: bool(call.meta.get("words"))),
    Construct("more functions", _MORE_SQL, (exp.Anonymous,), _calls_new_function),
    Construct("bitwise operators", _LATERAL, (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot)),
    Construct("shifts", _LATERAL, (exp.Anonymous,), _is_shift),
    Construct("a query or UNNEST after LATERAL", _LATERAL, (exp.Lateral,), _is_query_after_lateral),
    Construct("WITH RECURSIVE", _LATERAL, (exp.With,), lambda with_: bool(with_.args.get("recursive"))),
    Construct("the star of a structure", _LATERAL, (exp.Column,), _is_star_of_structure),
    Construct("* EXCEPT", _STARS, (exp.Star,), _has_except),
    Construct("LIKE ANY and LIKE ALL", _STARS, (exp.Like, exp.ILike), _has_patterns),
    Construct("names of earlier tables in a query after LATERAL", _STARS, (exp.Lateral,), _names_earlier_columns),
    Construct("a subquery in ON", _STARS, (exp.Join,), lambda join: has_subquery(join.args.get("on"))),
    Construct("several recursive queries", _STARS, (exp.With,), _has_several_recursions),
    Construct("range in FROM", _ANALYSTS, (exp.Table,), is_range),
    Construct("intervals of several units", _ANALYSTS, (exp.Interval,), lambda each: units_of(each) is not None),
    Construct(
        "try_element_at and regexp_extract_all",
        _ANALYSTS,
        (exp.Anonymous,),
        lambda call: str(call.this).lower() in {"try_element_at", "regexp_extract_all"},
    ),
    Construct("row values", _ALL_QUERIES, (exp.Tuple,), _is_row_value),
    Construct("aggregates that ignore NULLs", _ALL_QUERIES, (exp.IgnoreNulls, exp.RespectNulls), _is_of_aggregate),
    Construct("names of columns after a table", _ALL_QUERIES, (exp.Table,), _has_column_names),
    Construct("joins in parentheses", _ALL_QUERIES, (exp.Subquery,), _is_in_parentheses),
    Construct("sequence of columns", _ALL_QUERIES, (exp.Anonymous,), _computes_bounds),
    Construct("generators over groups", _ALL_QUERIES, (exp.Select,), _explodes_groups),
    Construct("SORT BY, CLUSTER BY and DISTRIBUTE BY", _ALL_QUERIES, (exp.Select,), _has_distribution),
    Construct("EXCEPT after the star of a structure", _MORE_FUNCTIONS, (exp.Column,), _leaves_fields_out),
    Construct("functions of version 17", _MORE_FUNCTIONS, (exp.Anonymous,), _calls_function_of_17),
    Construct("arguments that ignore NULLs", _MORE_FUNCTIONS, (exp.Anonymous,), _has_switch),
    Construct("stars as arguments", _MORE_ARGUMENTS, (exp.Anonymous,), _has_star),
    Construct("COUNT of several values", _MORE_ARGUMENTS, (exp.Anonymous,), _counts_several),
)
"""What versions added to the syntax of SQL, oldest first."""


def _by_type() -> Mapping[type[exp.Expr], list[Construct]]:
    found: dict[type[exp.Expr], list[Construct]] = {}
    for construct in CONSTRUCTS:
        for type_ in construct.types:
            found.setdefault(type_, []).append(construct)
    return found


_BY_TYPE = _by_type()

_BY_TABLES = {
    ALIASES: _ANALYSTS,
    CORRELATED: _ANALYSTS,
    GENERATED: _ANALYSTS,
    DOMAIN: _ALL_QUERIES,
    WRAPPED: _ALL_QUERIES,
    MARKED: _ALL_QUERIES,
    COMPUTED_FIRST: _MORE_FUNCTIONS,
    CLAUSES_OF_ROWS: _MORE_FUNCTIONS,
    TIME_WINDOWS: _MORE_FUNCTIONS,
    SESSION_WINDOWS: _WINDOWS,
    CUMULATIVE_WINDOWS: _WINDOWS,
    FIELDS_LEFT_OUT: _MORE_FUNCTIONS,
}
"""The versions of constructs that the columns of the tables decide."""


def constructs_in(tree: exp.Expr) -> Iterator[Construct]:
    """Yields the constructs of `CONSTRUCTS` in a syntax tree, once for each node that is one."""
    for node in tree.walk():
        yield from (construct for construct in _BY_TYPE.get(type(node), ()) if construct.holds(node))


def version_of_syntax(tree: exp.Expr, text: str) -> int:
    """Returns the lowest version whose workers support the syntax of the SQL `text`, whose tree is `tree`."""
    version = max((construct.version for construct in constructs_in(tree)), default=_FIRST)
    return max(version, _LARGE_QUERIES) if _is_large(tree, text) else version


def version_of_constructs(names: Iterable[str]) -> int:
    """Returns the lowest version whose workers support the constructs in `Origins.constructs`."""
    return max((_BY_TABLES[name] for name in names), default=_FIRST)


def version_of_query(query: Query) -> int:
    """Returns the lowest version whose workers support the parts of a structured query, without its expressions."""
    version = _FIRST
    for each, _ in queries_in(query):
        if _has_list_next_to_distinct(each):
            version = max(version, _ANALYSTS)
        if _is_new(each):
            version = max(version, _MORE_SQL)
        elif len(each.joins) > _MAX_BEFORE_9:
            version = max(version, _LARGE_QUERIES)
        if any(call.function in _AGGREGATES_OF_17 for call in each.aggregates):
            return _MORE_FUNCTIONS
    return version


def version_of_values(query: BoundQuery) -> int:
    """Returns the lowest version whose workers support the nested values of a bound query."""
    if joins_by_nested_values(query):
        return _STARS
    if uses_new_nested_values(query):
        return _LATERAL
    return _MORE_SQL if uses_nested_values(query) else _FIRST


def _is_large(tree: exp.Expr, text: str) -> bool:
    if len(text) > _MAX_CHARACTERS_BEFORE_9:
        return True
    joins = (len(select.args.get("joins") or []) for select in tree.find_all(exp.Select))
    unions = sum(1 for _ in tree.find_all(exp.SetOperation))
    return max(joins, default=0) > _MAX_BEFORE_9 or unions >= _MAX_BEFORE_9


def _is_new(query: Query) -> bool:
    return (
        query.offset > 0
        or any(not join.on and join.kind is not JoinKind.CROSS for join in query.joins)
        or any(map(_is_new_call, query.aggregates))
        or any(
            isinstance(source, ValuesRef) or (isinstance(source, UnionRef) and source.kind != "union_all")
            for source in sources_in(query)
        )
    )


def _has_list_next_to_distinct(query: Query) -> bool:
    """Whether Spark may copy rows for DISTINCT calls next to a LISTAGG, with which it fails before version 15."""
    distinct = [call for call in query.aggregates if call.distinct]
    copies = len(distinct) > 1 or any(call.filter is not None for call in distinct)
    return copies and any(call.function is AggregateFunction.LISTAGG for call in query.aggregates)


def _is_new_call(call: AggregateCall) -> bool:
    return (
        call.function not in _AGGREGATES_BEFORE_12
        or (call.function in _ORDERED and call.order_by is None)
        or (call.function is AggregateFunction.PERCENTILE and len(call.arguments) > 2)
        or (call.function is AggregateFunction.APPROX_COUNT_DISTINCT and len(call.arguments) > 1)
    )
