"""How sqlglot's nodes are named here: the tables behind `service.sql.expressions.reader`."""

from __future__ import annotations

import re

from sqlglot import exp

from service.sql.types.data_types import TypeName

ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "DIV",
    exp.DPipe: "||",
}
COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
LIKES: dict[type[exp.Expr], str] = {exp.Like: "LIKE", exp.ILike: "ILIKE", exp.RegexpLike: "RLIKE"}
PREDICATES = (*COMPARISONS, *LIKES, exp.NullSafeNEQ, exp.Is, exp.In, exp.Between, exp.Not, exp.Escape)
TYPES: dict[exp.DType, TypeName] = {
    exp.DType.BOOLEAN: TypeName.BOOLEAN,
    exp.DType.TINYINT: TypeName.TINYINT,
    exp.DType.SMALLINT: TypeName.SMALLINT,
    exp.DType.INT: TypeName.INT,
    exp.DType.BIGINT: TypeName.BIGINT,
    exp.DType.FLOAT: TypeName.FLOAT,
    exp.DType.DOUBLE: TypeName.DOUBLE,
    exp.DType.DECIMAL: TypeName.DECIMAL,
    exp.DType.TEXT: TypeName.STRING,
    exp.DType.BINARY: TypeName.BINARY,
    exp.DType.DATE: TypeName.DATE,
    exp.DType.TIMESTAMPTZ: TypeName.TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TypeName.TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TypeName.TIMESTAMP_NTZ,
}
SUFFIXES = {"L": (TypeName.BIGINT, 63), "S": (TypeName.SMALLINT, 15), "Y": (TypeName.TINYINT, 7)}
"""The type of a number with this suffix, and its bits without the sign."""
INTERVAL_UNITS = {"YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"}
INTERVAL_HINT = (
    f"Write it like INTERVAL '1' DAY, one number of a unit of {', '.join(sorted(INTERVAL_UNITS))}; days from a column "
    "are date_add(d, n)."
)
EXTRACT_PARTS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFWEEK", "DOY", "HOUR", "MINUTE", "SECOND"}
SUFFIXED = re.compile(r"(\d+)([LSY])", re.ASCII | re.IGNORECASE)
NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?", re.ASCII)
INTERVAL_VALUE = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,6})?", re.ASCII)
HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_SUBQUERY = (
    "Write IN (SELECT …) as a LEFT SEMI JOIN, NOT IN as a LEFT ANTI JOIN where none is NULL, and a single value as a "
    "CROSS JOIN with a derived table of one row."
)
NESTED = "Nested values can be read but not computed with: keep their parts in columns of their own."
QUANTIFIED = (
    "Write = ANY as a LEFT SEMI JOIN; else compare with MIN or MAX of a derived table of one row, by CROSS JOIN."
)
PARAMETER_SIGNS = frozenset({":", "?", "@", "$", "{"})
CONSTRUCTS: dict[type[exp.Expr], str] = {
    exp.Subquery: "A subquery",
    exp.Select: "A subquery",
    exp.Exists: "EXISTS with a subquery",
    exp.Window: "A window function (OVER)",
    exp.Lambda: "A lambda function",
    exp.JSONExtract: "A lambda function or path",
    exp.Bracket: "Access to an element ([…])",
    exp.Dot: "Access to a field",
    exp.Placeholder: "A parameter",
    exp.Parameter: "A parameter",
    exp.Star: "*",
    exp.Tuple: "A row value",
    exp.Alias: "An alias (AS)",
    exp.Any: "ANY",
    exp.All: "ALL",
    exp.IgnoreNulls: "IGNORE NULLS",
    exp.RespectNulls: "RESPECT NULLS",
    exp.WithinGroup: "WITHIN GROUP",
    exp.Distinct: "DISTINCT inside a scalar function",
    exp.Order: "ORDER BY inside a scalar function",
    exp.BitwiseAnd: "The bitwise operator &",
    exp.BitwiseOr: "The bitwise operator |",
    exp.BitwiseXor: "The bitwise operator ^",
    exp.BitwiseNot: "The bitwise operator ~",
    exp.BitwiseLeftShift: "The bitwise operator <<",
    exp.BitwiseRightShift: "The bitwise operator >>",
    exp.Array: "An array ([…])",
    exp.AtTimeZone: "AT TIME ZONE",
    exp.SimilarTo: "SIMILAR TO",
    exp.Glob: "GLOB",
    exp.Coalesce: "The operator ??",
    exp.StrToDate: "CAST with FORMAT",
    exp.StrToTime: "CAST with FORMAT",
    exp.Collate: "COLLATE",
    exp.Filter: "FILTER",
}
HINTS: dict[type[exp.Expr], str] = {
    exp.Subquery: _SUBQUERY,
    exp.Select: _SUBQUERY,
    exp.Exists: "Write a LEFT SEMI JOIN, or a LEFT ANTI JOIN for NOT EXISTS.",
    exp.Window: "Aggregate in a derived table and join it back; the first of a group is FIRST_VALUE(x ORDER BY t).",
    exp.Lambda: NESTED,
    exp.JSONExtract: NESTED,
    exp.Bracket: NESTED,
    exp.Dot: NESTED,
    exp.BitwiseXor: "Write power(x, n) for a power.",
    exp.BitwiseLeftShift: "Write x * power(2, n).",
    exp.BitwiseRightShift: "Write x DIV 4 for two bits.",
    exp.Array: "Backquotes enclose names: `a name`.",
    exp.AtTimeZone: "Times are in the session's zone, UTC.",
    exp.SimilarTo: "Write RLIKE.",
    exp.Glob: "Write LIKE or RLIKE.",
    exp.Coalesce: "Write coalesce(a, b).",
    exp.StrToDate: "Write to_date(x, 'yyyy-MM-dd').",
    exp.StrToTime: "Write to_timestamp(x, 'yyyy-MM-dd HH:mm').",
    exp.Placeholder: "Write the value.",
    exp.Parameter: "Write the value.",
    exp.Star: "Name the columns.",
    exp.Tuple: "Compare the columns one by one.",
    exp.Any: "Write IN with a list of values, or OR of comparisons.",
    exp.All: "Write AND of comparisons.",
    exp.IgnoreNulls: "Add FILTER (WHERE x IS NOT NULL).",
    exp.RespectNulls: "Leave it out.",
    exp.Collate: "Compare UPPER or LOWER of both sides.",
}
"""The form that works in place of some constructs."""
LOST: dict[tuple[type[exp.Expr], str], tuple[str, str]] = {
    (exp.In, "field"): ("IN without a list", "Write IN (1, 2); POSITION(a IN b) is position(a, b)."),
    (exp.In, "unnest"): ("IN with UNNEST", "Write IN (1, 2)."),
    (exp.Limit, "limit_options"): ("LIMIT with PERCENT or TIES", "Write a number of rows."),
    (exp.Limit, "expressions"): ("LIMIT … BY", "The first of each group is FIRST_VALUE(x ORDER BY t) with GROUP BY."),
    (exp.TryCast, "format"): ("CAST with FORMAT", "Write date_format(t, 'yyyy-MM-dd')."),
    (exp.Cast, "format"): ("CAST with FORMAT", "Write date_format(t, 'yyyy-MM-dd')."),
}
"""Parts of accepted nodes that would be lost, by sqlglot's name, and the form that works."""
ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        exp.Paren: "this",
        exp.Column: "this table db catalog",
        exp.Literal: "this is_string",
        exp.RawString: "this is_string",
        exp.Null: "",
        exp.Boolean: "this",
        exp.HexString: "this is_integer",
        exp.Concat: "expressions safe coalesce",
        exp.Neg: "this",
        exp.Not: "this",
        exp.NullSafeNEQ: "this expression",
        exp.Is: "this expression",
        exp.In: "this expressions",
        exp.Between: "this low high",
        exp.Escape: "this expression",
        exp.And: "this expression",
        exp.Or: "this expression",
        exp.Case: "this ifs default",
        exp.Cast: "this to safe",
        exp.TryCast: "this to safe",
        exp.Interval: "this unit",
        exp.Extract: "this expression",
        exp.Filter: "this expression",
        exp.WithinGroup: "this expression",
        exp.Anonymous: "this expressions",
        exp.Distinct: "expressions",
        exp.Order: "this expressions",
        exp.Ordered: "this desc nulls_first",
        exp.Limit: "expression",
        exp.Where: "this",
        exp.Having: "this",
        exp.Star: "",
        **dict.fromkeys((*ARITHMETIC, exp.Div), "this expression typed safe"),
        **dict.fromkeys(COMPARISONS, "this expression"),
        **dict.fromkeys(LIKES, "this expression negate"),
    }.items()
}
"""What each accepted node may hold; anything more is a clause that would be lost."""
CLAUSES = {
    "offset": "OFFSET",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "laterals": "LATERAL VIEW",
    "sort": "SORT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "pivots": "PIVOT",
    "into": "INTO",
    "locks": "FOR UPDATE",
    "kind": "AS STRUCT",
    "connect": "CONNECT BY",
    "match": "MATCH_RECOGNIZE",
    "sample": "TABLESAMPLE",
    "by_name": "UNION BY NAME",
    "joins": "A nested join",
    "version": "A version of a table (time travel)",
    "hints": "WITH behind a table",
}
"""Clauses of a query and of a table, by sqlglot's name."""
CLAUSE_HINTS = {
    "offset": "Use ORDER BY and LIMIT, and leave the first rows of the result out.",
    "windows": "Aggregate in a derived table and join it back.",
    "laterals": "Write a row for each element into the files.",
    "pivots": "Write one aggregate with FILTER (WHERE …) for each column.",
    "sample": "Filter by a hash of a key: pmod(xxhash64(k), 100) < 10.",
    "into": "The result is the job's: see its sink.",
    "sort": "Use ORDER BY.",
    "cluster": "Use ORDER BY.",
    "distribute": "The engine decides where rows go; see the settings.",
    "qualify": "Put the query into a derived table and use WHERE.",
    "by_name": "Name the columns in one order in both queries.",
    "joins": "Write each join with its own ON, one after the other.",
    "version": "Tables are read as they are: keep older files under a path of their own.",
    "locks": "Nothing is written: leave it out.",
    "connect": "Write as many joins as there are levels.",
    "hints": "Hints stand behind SELECT: /*+ BROADCAST(t) */.",
}
"""The form that works in place of some of them."""
