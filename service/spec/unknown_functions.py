"""What is told of a function that is not taken: what to write instead where there is something, else the nearest."""

from __future__ import annotations

from service.spec.errors import did_you_mean, nearest_names
from service.spec.functions import FUNCTIONS
from service.spec.query import AggregateFunction
from service.spec.sql_aggregates import SYNONYMS

_BOOLEAN = "{} of CASE WHEN condition THEN 1 ELSE 0 END, and compare it with 1."
_ORDERED = "Without an order its result would be arbitrary."
_LIST = "LISTAGG(x, ',') WITHIN GROUP (ORDER BY t), which makes a string."
_SECONDS = "(unix_timestamp(b) - unix_timestamp(a)) DIV 3600 for hours, and so on, or datediff(b, a) for days."
_AGGREGATES = {
    "first": f"FIRST_VALUE(x ORDER BY t). {_ORDERED}",
    "last": f"LAST_VALUE(x ORDER BY t). {_ORDERED}",
    "any_value": f"MIN(x) or FIRST_VALUE(x ORDER BY t). {_ORDERED}",
    "min_by": "FIRST_VALUE(x ORDER BY t).",
    "max_by": "LAST_VALUE(x ORDER BY t).",
    "count_if": "COUNT(*) FILTER (WHERE condition).",
    "countif": "COUNT(*) FILTER (WHERE condition).",
    "approx_percentile": "PERCENTILE(x, p), which is exact.",
    "percentile_approx": "PERCENTILE(x, p), which is exact.",
    "percentile_disc": "PERCENTILE(x, p), which interpolates.",
    "quantile": "PERCENTILE(x, p).",
    "array_agg": _LIST,
    "collect_list": _LIST,
    "group_concat": _LIST,
    "wm_concat": _LIST,
    "collect_set": "LISTAGG(DISTINCT x, ',') WITHIN GROUP (ORDER BY x), which makes a string.",
    "count_distinct": "COUNT(DISTINCT x).",
    "approx_distinct": "APPROX_COUNT_DISTINCT(x).",
    **dict.fromkeys(("any", "some", "bool_or"), _BOOLEAN.format("MAX")),
    **dict.fromkeys(("every", "bool_and"), _BOOLEAN.format("MIN")),
    **dict.fromkeys(
        ("bit_and", "bit_or", "bit_xor", "corr", "covar_pop", "covar_samp", "kurtosis", "mode", "skewness"), ""
    ),
}
"""Aggregate functions that are not taken, and what to write in place of them."""

_SCALARS = {
    "iif": "if(condition, x, y).",
    "decode": "CASE x WHEN 1 THEN 'a' ELSE 'b' END.",
    "zeroifnull": "coalesce(x, 0).",
    "nullifzero": "nullif(x, 0).",
    "len": "length(x).",
    "charindex": "instr(text, part).",
    "strpos": "instr(text, part).",
    "split": "split_part(text, ',', 1) for one of the parts.",
    "substring_index": "split_part(text, ',', 1).",
    "regexp_like": "x RLIKE 'pattern'.",
    "regexp": "x RLIKE 'pattern'.",
    "rlike": "x RLIKE 'pattern'.",
    "like": "x LIKE 'pattern'.",
    "ilike": "x ILIKE 'pattern'.",
    "try_divide": "x / nullif(y, 0).",
    "convert": "CAST(x AS STRING).",
    "safe_cast": "TRY_CAST(x AS INT).",
    "to_number": "CAST(x AS DECIMAL(10,2)).",
    "to_char": "date_format(t, 'yyyy-MM-dd'), or CAST(x AS STRING).",
    "to_varchar": "date_format(t, 'yyyy-MM-dd'), or CAST(x AS STRING).",
    "strftime": "date_format(t, 'yyyy-MM-dd').",
    "date_part": "EXTRACT(YEAR FROM t).",
    "datepart": "EXTRACT(YEAR FROM t).",
    "timestampdiff": _SECONDS,
    "timestampadd": "t + INTERVAL '1' HOUR.",
    "make_interval": "INTERVAL '1' DAY, or date_add(d, n).",
    **dict.fromkeys(("getdate", "sysdate", "localtimestamp"), "current_timestamp()."),
    **dict.fromkeys(("curdate", "today"), "current_date()."),
    **dict.fromkeys(
        ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "binary"),
        "CAST(x AS …).",
    ),
    "timestamp": "CAST(x AS TIMESTAMP).",
    **dict.fromkeys(
        ("window", "window_time", "cumulate"),
        "TUMBLE(t, INTERVAL '10' MINUTE) in GROUP BY over a stream, else GROUP BY date_trunc('hour', t).",
    ),
    **dict.fromkeys(
        (f"{window}_{time}" for window in ("tumble", "hop") for time in ("rowtime", "proctime")),
        "TUMBLE_END or HOP_END.",
    ),
}
"""Scalar functions of Spark and others that are not taken, and what to write in place of them."""

_KINDS = (
    (
        "is a window function, and there is no OVER here. Aggregate in a derived table and join it back; the first of "
        "a group is FIRST_VALUE(x ORDER BY t).",
        "row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value",
    ),
    (
        "makes several rows of one, which no expression does here. Write a row for each element into the files.",
        "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple flatten unnest",
    ),
    (
        "is about nested values or documents, which can be read but not computed with. Keep their parts in columns of "
        "their own.",
        "array map struct named_struct array_append array_compact array_contains array_distinct array_except "
        "array_insert array_intersect array_join array_max array_min array_position array_prepend array_remove "
        "array_repeat array_size array_sort array_union arrays_overlap arrays_zip size cardinality element_at get "
        "sort_array slice sequence transform filter aggregate reduce exists forall zip_with map_concat "
        "map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with "
        "str_to_map transform_keys transform_values from_json to_json get_json_object schema_of_json "
        "json_array_length json_object_keys json_extract json_value parse_json variant_get from_csv to_csv "
        "schema_of_csv from_xml to_xml xpath xpath_string",
    ),
    (
        "gives another value each time that a task runs, and one may run twice. Compute it from a key, for example by "
        "xxhash64(k).",
        "rand random randn uuid shuffle monotonically_increasing_id spark_partition_id input_file_name "
        "input_file_block_start input_file_block_length newid gen_random_uuid",
    ),
)
_KIND_OF = {name: kind for kind, names in _KINDS for name in names.split()}


def unknown_function(name: str) -> tuple[str, tuple[str, ...]]:
    """What is told of the function `name`, in lower case, and the nearest names that there are."""
    if name in _AGGREGATES:
        detail = f"The aggregate function {name} is not supported"
        instead = _AGGREGATES[name]
        return f"{detail}. Write {instead}" if instead else f"{detail}; there are {', '.join(AggregateFunction)}.", ()
    if name in _SCALARS:
        return f"There is no function {name} here. Write {_SCALARS[name]}", ()
    if name in _KIND_OF:
        return f"The function {name} {_KIND_OF[name]}", ()
    aggregates = {item.lower() for item in (*AggregateFunction, *SYNONYMS)}
    suggestions = nearest_names(name, sorted({*FUNCTIONS, *aggregates}), alike=0.65)
    return f"There is no function {name[:60]} here.{did_you_mean(suggestions)}", suggestions


_ARITY = {
    "datediff": f"For other units write {_SECONDS}",
    "date_diff": f"For other units write {_SECONDS}",
    "dateadd": "Write date_add(d, n), add_months(d, n) or t + INTERVAL '1' HOUR.",
    "date_add": "Write date_add(d, n), add_months(d, n) or t + INTERVAL '1' HOUR.",
    "isnull": "Write coalesce(x, 0).",
}


def wrong_arity(name: str, count: int) -> str:
    """What is told of a call of the function `name` with `count` arguments, which it does not take."""
    arity = FUNCTIONS[name].arity
    told = f"{name} takes {arity} argument{'' if arity.removeprefix('at least ') == '1' else 's'}, not {count}."
    return f"{told} {_ARITY[name]}" if name in _ARITY else told
