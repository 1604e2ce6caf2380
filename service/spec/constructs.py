"""How sqlglot's nodes are named here: the tables behind `service.spec.parsing`."""

from __future__ import annotations

import re

from sqlglot import exp

from service.spec.types import TypeName

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
EXTRACT_PARTS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFWEEK", "DOY", "HOUR", "MINUTE", "SECOND"}
SUFFIXED = re.compile(r"(\d+)([LSY])", re.ASCII | re.IGNORECASE)
NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?", re.ASCII)
INTERVAL_VALUE = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,6})?", re.ASCII)
HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
NOT_IN_THE_ALGEBRA = frozenset(
    name
    for names in (
        "any any_value approx_count_distinct approx_percentile array_agg bit_and bit_or bit_xor bool_and bool_or",
        "collect_list collect_set corr count_if covar_pop covar_samp every first kurtosis last listagg max_by mean",
        "median min_by mode percentile percentile_approx skewness some std stddev stddev_pop stddev_samp string_agg",
        "var_pop var_samp variance",
    )
    for name in names.split()
)
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
    exp.Collate: "COLLATE",
    exp.Filter: "FILTER",
}
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
