"""What SQL is supported and what is refused: tables of sqlglot's nodes, clauses and functions, and hints for messages.

`ARGUMENTS` lists the supported nodes and the arguments that are read from each. Everything else is refused, by
`service.sql.expressions.reader` in expressions and by `service.sql.statements` in statements. The supported scalar
functions are in `service.sql.types.functions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlglot import exp

from service.contract.problems import did_you_mean, nearest_names
from service.sql.types.data_types import TypeName

ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "DIV",
    exp.DPipe: "||",
    exp.BitwiseAnd: "&",
    exp.BitwiseXor: "^",
    exp.BitwiseOr: "|",
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
"""By suffix of a number: its type, and its bits without the sign."""
INTERVAL_UNITS = {"YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"}
INTERVAL_HINT = (
    f"Write one number and one unit ({', '.join(sorted(INTERVAL_UNITS))}), for example INTERVAL '1' DAY, or two units: "
    "INTERVAL '1-2' YEAR TO MONTH, INTERVAL '1 02:03:04' DAY TO SECOND. To add the days in a column n, write "
    "date_add(d, n)."
)
EXTRACT_PARTS = {
    "YEAR",
    "YEAROFWEEK",
    "QUARTER",
    "MONTH",
    "WEEK",
    "DAY",
    "DAYOFWEEK",
    "DAYOFWEEK_ISO",
    "DOY",
    "HOUR",
    "MINUTE",
    "SECOND",
}
EXTRACT_SYNONYMS = {
    synonym: part
    for part, synonyms in {
        "YEAR": "Y YEARS YR YRS",
        "QUARTER": "QTR",
        "MONTH": "MON MONS MONTHS",
        "WEEK": "W WEEKS",
        "DAY": "D DAYS",
        "DAYOFWEEK": "DOW",
        "DAYOFWEEK_ISO": "DOW_ISO",
        "HOUR": "H HOURS HR HRS",
        "MINUTE": "M MIN MINS MINUTES",
        "SECOND": "S SEC SECONDS SECS",
    }.items()
    for synonym in synonyms.split()
}
"""Other names of the parts of EXTRACT, as in Spark."""
SUFFIXED = re.compile(r"(\d+)([LSY])", re.ASCII | re.IGNORECASE)
NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?", re.ASCII)
INTERVAL_VALUE = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,6})?", re.ASCII)
HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_SUBQUERY = "Use it in SELECT, WHERE, HAVING or ORDER BY of a job's `sql`, or join a derived table."
QUANTIFIED = "Write IN instead of = ANY. Otherwise, compare with a subquery that returns the MIN or MAX."
PARAMETER_SIGNS = frozenset({":", "?", "@", "$", "{"})
CONSTRUCTS: dict[type[exp.Expr], str] = {
    exp.Subquery: "A subquery",
    exp.Select: "A subquery",
    exp.Exists: "EXISTS with a subquery",
    exp.Lambda: "A lambda function",
    exp.JSONExtract: "A lambda function or path",
    exp.Bracket: "ARRAY[…] or a slice ([…:…])",
    exp.Dot: "This access to a field",
    exp.Identifier: "A parameter of a lambda",
    exp.Window: "A call with OVER inside a lambda",
    exp.Placeholder: "A parameter",
    exp.Parameter: "A parameter",
    exp.Star: "*",
    exp.Values: "VALUES in an expression",
    exp.Alias: "An alias (AS)",
    exp.Any: "ANY",
    exp.HavingMax: "HAVING in a call",
    exp.All: "ALL",
    exp.IgnoreNulls: "IGNORE NULLS",
    exp.RespectNulls: "RESPECT NULLS",
    exp.WithinGroup: "WITHIN GROUP",
    exp.Distinct: "DISTINCT inside a scalar function",
    exp.Order: "ORDER BY inside a scalar function",
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
    exp.Exists: _SUBQUERY,
    exp.Lambda: "Write it as an argument of a function such as transform or filter.",
    exp.JSONExtract: "Write a lambda as an argument of a function such as transform, or get_json_object(x, '$.a').",
    exp.Bracket: "Write array(1, 2), or slice(a, 1, 2).",
    exp.HavingMax: "Write MAX_BY(x, y), or MIN_BY(x, y).",
    exp.Dot: "Write value.field.",
    exp.Window: "Compute it in a derived table.",
    exp.Array: "Write array(1, 2). To quote a name, write it in backquotes: `a name`.",
    exp.AtTimeZone: "All times are in the session's time zone, UTC. Remove AT TIME ZONE.",
    exp.SimilarTo: "Write RLIKE.",
    exp.Glob: "Write LIKE or RLIKE.",
    exp.Coalesce: "Write coalesce(a, b).",
    exp.StrToDate: "Write to_date(x, 'yyyy-MM-dd').",
    exp.StrToTime: "Write to_timestamp(x, 'yyyy-MM-dd HH:mm').",
    exp.Placeholder: "Write the value. In a job's `sql`, write :name, and give the value in `parameters`.",
    exp.Parameter: "Write :name, and give the value in the job's `parameters`.",
    exp.Star: "Name the columns.",
    exp.Values: "Write a list of values, or (SELECT * FROM VALUES (1), (2)).",
    exp.Filter: "FILTER follows the call of an aggregate. Elsewhere, write CASE WHEN condition THEN x END.",
    exp.Any: "Write IN with a list of values, or join comparisons by OR.",
    exp.All: "Join comparisons by AND.",
    exp.IgnoreNulls: "Add FILTER (WHERE x IS NOT NULL), or OVER after a window function.",
    exp.RespectNulls: "Remove it.",
    exp.Collate: "Compare UPPER or LOWER of both sides.",
}
"""What to write instead of some constructs."""
LOST: dict[tuple[type[exp.Expr], str], tuple[str, str]] = {
    (exp.Star, "except_"): ("* EXCEPT", "Name the columns."),
    (exp.In, "field"): ("IN without a list", "Write IN (1, 2)."),
    (exp.In, "unnest"): ("IN with UNNEST", "Write IN (1, 2)."),
    (exp.Limit, "limit_options"): ("LIMIT with PERCENT or TIES", "Write a number of rows."),
    (exp.Limit, "expressions"): (
        "LIMIT … BY",
        "For the first value of each group, write FIRST_VALUE(x ORDER BY t) with GROUP BY.",
    ),
    (exp.TryCast, "format"): ("CAST with FORMAT", "Write date_format(t, 'yyyy-MM-dd')."),
    (exp.Cast, "format"): ("CAST with FORMAT", "Write date_format(t, 'yyyy-MM-dd')."),
}
"""Arguments that are not supported, by node and sqlglot's name: how messages name them, and what to write instead."""
ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        exp.Paren: "this",
        exp.Dot: "this expression",
        exp.Bracket: "this expressions",
        exp.Lambda: "this expressions",
        exp.Identifier: "this quoted",
        exp.Column: "this table db catalog",
        exp.Literal: "this is_string",
        exp.RawString: "this is_string",
        exp.Null: "",
        exp.Placeholder: "this widget",
        exp.Boolean: "this",
        exp.HexString: "this is_integer",
        exp.Concat: "expressions safe coalesce",
        exp.Neg: "this",
        exp.BitwiseNot: "this",
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
        exp.Window: "this partition_by order spec over alias",
        exp.Qualify: "this",
        exp.Anonymous: "this expressions",
        exp.Tuple: "expressions",
        exp.IgnoreNulls: "this",
        exp.RespectNulls: "this",
        exp.Distinct: "expressions",
        exp.Order: "this expressions",
        exp.Ordered: "this desc nulls_first",
        exp.Limit: "expression",
        exp.Offset: "expression",
        exp.Where: "this",
        exp.Having: "this",
        exp.Star: "",
        **dict.fromkeys((*ARITHMETIC, exp.Div), "this expression typed safe"),
        **dict.fromkeys(COMPARISONS, "this expression"),
        **dict.fromkeys(LIKES, "this expression negate"),
    }.items()
}
"""The arguments that are read from each supported node; any other one is refused, since it would be ignored."""
CLAUSES = {
    "into": "INTO",
    "locks": "FOR UPDATE",
    "kind": "AS STRUCT",
    "connect": "CONNECT BY",
    "match": "MATCH_RECOGNIZE",
    "sample": "TABLESAMPLE",
    "by_name": "UNION BY NAME",
    "joins": "A nested join",
    "version": "A version of a table (time travel)",
    "hints": "WITH after a table",
}
"""Names of unsupported clauses of a query or a table, by sqlglot's name."""
CLAUSE_HINTS = {
    "sample": "Filter by a hash of a key: pmod(xxhash64(k), 100) < 10.",
    "into": "Set the job's 'sink' to choose where the result is written.",
    "by_name": "Select the columns in the same order in both queries.",
    "joins": "Write each join with its own ON, one after the other.",
    "version": "A table is read at its current version. Keep older files under a path of their own.",
    "locks": "Remove it: a query only reads.",
    "connect": "Write one join per level.",
    "hints": "Write hints directly after SELECT: /*+ BROADCAST(t) */.",
}
"""What to write instead of some of these clauses."""
PARENTHESES = {
    "join": (
        "A join in parentheses",
        "Remove the parentheses, or write (SELECT * FROM …) around the join.",
    ),
    "table": (
        "A table in parentheses",
        "Remove the parentheses, or write (SELECT * FROM the table).",
    ),
    "describe": (
        "DESCRIBE inside a query",
        "Submit DESCRIBE and the name of the table as a job of its own.",
    ),
}
"""Parentheses that contain no query: how messages name them, and what to write instead."""


def parentheses_around(node: exp.Expr) -> tuple[str, str]:
    """Returns how messages name the parentheses around `node`, which is no query, and what to write instead."""
    if isinstance(node, exp.Describe):
        return PARENTHESES["describe"]
    return PARENTHESES["join" if node.args.get("joins") else "table"]


_LIST = "LISTAGG(x, ',') WITHIN GROUP (ORDER BY t), which returns a string."
UNSUPPORTED_AGGREGATES = {
    "countif": "COUNT_IF(condition).",
    "quantile": "PERCENTILE(x, p).",
    **dict.fromkeys(("group_concat", "wm_concat"), _LIST),
    "count_distinct": "COUNT(DISTINCT x).",
    "approx_distinct": "APPROX_COUNT_DISTINCT(x).",
}
"""Aggregate functions that are not supported, and what to write instead."""

UNSUPPORTED_SCALARS = {
    "iif": "if(condition, x, y).",
    "charindex": "instr(text, part).",
    "strpos": "instr(text, part).",
    "convert": "CAST(x AS STRING).",
    "safe_cast": "TRY_CAST(x AS INT).",
    "strftime": "date_format(t, 'yyyy-MM-dd').",
    "aes_encrypt": "hmac(key, x) or sha2(x, 256): each encryption would use other random bytes.",
    "assert_true": "CASE WHEN NOT condition THEN raise_error('text') END.",
    "counter_diff": "x - LAG(x) OVER (ORDER BY t).",
    **dict.fromkeys(("timestamp_nanos", "unix_nanos"), "timestamp_micros(n) or unix_micros(t)."),
    **dict.fromkeys(("collate", "collation", "collations"), "UPPER or LOWER of both sides to compare them."),
    **dict.fromkeys(
        ("current_timezone", "current_catalog", "current_database", "current_schema", "current_path"),
        "the value: a job has no session of its own. The time zone is 'UTC'.",
    ),
    **dict.fromkeys(
        (
            "getdate",
            "sysdate",
        ),
        "current_timestamp().",
    ),
    "today": "current_date().",
    "window_time": "GROUP BY TUMBLE(t, INTERVAL '10' MINUTE) over a stream, or GROUP BY window(t, '10 minutes') in a "
    "batch job.",
    **dict.fromkeys(
        ("cumulate", "cumulate_start", "cumulate_end"),
        "GROUP BY CUMULATE(t, INTERVAL '1' HOUR, INTERVAL '1' DAY), and its bounds in SELECT, HAVING or ORDER BY.",
    ),
    **dict.fromkeys(
        (f"{window}_{time}" for window in ("tumble", "hop") for time in ("rowtime", "proctime")),
        "TUMBLE_END or HOP_END.",
    ),
}
"""Scalar functions of Spark and other dialects that are not supported, and what to write instead."""

_KINDS = (
    (
        "is a window function. Write OVER after it, for example OVER (PARTITION BY k ORDER BY t).",
        "row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value",
    ),
    (
        "returns several rows. Write it alone as a column of SELECT, or in FROM: LATERAL VIEW explode(a) t AS x.",
        "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple unnest",
    ),
    (
        "returns rows. Write it in FROM: FROM range(1, 10), or explode(sequence(1, 9)).",
        "range",
    ),
    (
        "reads documents of a form that is not supported. For JSON, write get_json_object(x, '$.a'), or from_json.",
        "json_extract json_value parse_json variant_get from_xml to_xml schema_of_xml",
    ),
    (
        "returns another value each time a task runs, and Spark may run a task twice. Compute the value from a key, "
        "for example with xxhash64(k).",
        "rand random randn uuid shuffle monotonically_increasing_id spark_partition_id newid gen_random_uuid uniform "
        "randstr",
    ),
    (
        "depends on how Spark reads the files. Use a column of the table, such as a partition column.",
        "input_file_name input_file_block_start input_file_block_length",
    ),
    (
        "calls code of the Java machine, which is not supported. Use the functions of SQL.",
        "java_method reflect try_reflect",
    ),
    (
        "returns who or what runs the query, not a value of its tables. Write the value.",
        "current_user session_user user version python_worker_logs sql_keywords measure",
    ),
    (
        "works on a sketch of a form that is not supported. Use theta_sketch_agg(x), approx_top_k(x, 5) or "
        "COUNT(DISTINCT x).",
        "approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate bitmap_and_agg bitmap_bit_position "
        "bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg "
        "tuple_difference_double tuple_difference_integer tuple_difference_theta_double "
        "tuple_difference_theta_integer tuple_intersection_agg_double tuple_intersection_agg_integer "
        "tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double "
        "tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer "
        "tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double "
        "tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer tuple_union_agg_double "
        "tuple_union_agg_integer tuple_union_double tuple_union_integer tuple_union_theta_double "
        "tuple_union_theta_integer",
    ),
    (
        "has arguments or results of the type TIME, VARIANT or GEOMETRY, which tables and results cannot have. Use a "
        "TIMESTAMP or a STRING.",
        "current_time localtime make_time time time_diff time_from_micros time_from_millis time_from_seconds "
        "time_to_micros time_to_millis time_to_seconds time_trunc to_time try_to_time is_valid_variant is_variant_null "
        "schema_of_variant schema_of_variant_agg to_variant_object try_parse_json try_variant_array_append "
        "try_variant_get try_variant_insert try_variant_set variant_array_append variant_delete variant_explode "
        "variant_explode_outer variant_insert variant_set variant_strip_nulls st_asbinary st_geogfromwkb "
        "st_geomfromwkb st_setsrid st_srid",
    ),
    (
        "reads or writes records of a binary format. Read files of the format as a table of the job.",
        "from_avro to_avro schema_of_avro from_protobuf to_protobuf",
    ),
)
UNSUPPORTED_KINDS = {name: kind for kind, names in _KINDS for name in names.split()}
"""Functions of kinds that are not supported, and why, as the end of a sentence."""
EXCLUDED = {
    **{name: f"is not supported. Write {instead}" for name, instead in UNSUPPORTED_SCALARS.items()},
    **{name: f"is not supported. Write {instead}" for name, instead in UNSUPPORTED_AGGREGATES.items()},
    **UNSUPPORTED_KINDS,
}
"""By the name of a function that is not supported: why, and what to write instead, as the end of a sentence."""
_ARITY_HINTS = {
    **dict.fromkeys(("datediff", "date_diff"), "Write datediff(b, a) for days, or timestampdiff(HOUR, a, b)."),
    **dict.fromkeys(("dateadd", "date_add"), "Write date_add(d, n), or timestampadd(HOUR, n, t)."),
    "isnull": "Write coalesce(x, 0).",
}


def unknown_function(name: str, supported: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the message for the unknown function `name`, in lower case, and the nearest of the `supported` names."""
    if name == "window":
        return "The function window stands in GROUP BY, SELECT, HAVING or ORDER BY of a job's `sql` only.", ()
    if name in EXCLUDED:
        return f"The {'aggregate ' if name in UNSUPPORTED_AGGREGATES else ''}function {name} {EXCLUDED[name]}", ()
    suggestions = nearest_names(name, sorted(set(supported)), min_similarity=0.65)
    return f"There is no function {name[:60]}.{did_you_mean(suggestions)}", suggestions


def wrong_arity(name: str, arity: str, count: int) -> str:
    """Returns the message for a call of the function `name` with `count` arguments instead of `arity`."""
    detail = f"{name} takes {arity} argument{'' if arity.removeprefix('at least ') == '1' else 's'}, not {count}."
    return f"{detail} {_ARITY_HINTS[name]}" if name in _ARITY_HINTS else detail
