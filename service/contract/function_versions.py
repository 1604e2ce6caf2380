"""Finds queries with functions and spellings that only workers of version 12 of the job format support.

SQL is not parsed here, so the answers for it are upper bounds. A false positive only means that the job waits for a
newer worker.
"""

from __future__ import annotations

import re

from .query import AggregateFunction, Query, queries_in

_NAMES_BEFORE_12 = """
    abs acos add_months ascii asin atan atan2 bit_length bround btrim cbrt ceil ceiling char_length character_length
    coalesce concat concat_ws contains cos cosh crc32 current_date current_timestamp date date_format date_sub
    date_trunc day dayofmonth dayofweek dayofyear degrees endswith exp expm1 floor from_unixtime greatest hash hex hour
    hypot if ifnull initcap instr isnan isnotnull isnull last_day lcase least left length ln locate log log10 log1p
    log2 lower ltrim make_date md5 minute mod month negative next_day now nullif nvl nvl2 octet_length pmod positive
    pow power quarter radians raise_error replace reverse right rint round rtrim second sha sha1 sha2 sign signum sin
    sinh split_part sqrt startswith substr substring tan tanh timestamp_seconds to_date to_timestamp to_unix_timestamp
    translate trim trunc ucase unix_timestamp upper weekday weekofyear xxhash64 year
    count sum avg mean min max var_pop var_samp variance stddev_pop stddev_samp stddev std percentile_cont median
    grouping grouping_id
    row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value
    tumble hop tumble_start tumble_end hop_start hop_end
"""
_FUNCTIONS_BEFORE_12 = frozenset(_NAMES_BEFORE_12.split())
"""Functions whose calls version 11 supports in all the forms that version 12 does."""
_WORDS_BEFORE_PARENTHESES = """
    all and any as between broadcast broadcastjoin by case cast cube decimal distinct div else except exists filter
    from group having in intersect interval is join like ilike rlike limit mapjoin merge mergejoin minus not on or over
    partition qualify rollup select sets shuffle_hash shuffle_merge then try_cast union using when where window with
"""
_WORDS = frozenset(_WORDS_BEFORE_PARENTHESES.split())
"""Words before a parenthesis that begins no call."""
_AGGREGATES_BEFORE_12 = frozenset(
    {
        "COUNT",
        "SUM",
        "AVG",
        "MIN",
        "MAX",
        "FIRST_VALUE",
        "LAST_VALUE",
        "VAR_POP",
        "VAR_SAMP",
        "STDDEV_POP",
        "STDDEV_SAMP",
        "LISTAGG",
        "APPROX_COUNT_DISTINCT",
        "PERCENTILE",
        "GROUPING",
        "GROUPING_ID",
    }
)
_ORDERED = frozenset({AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE, AggregateFunction.LISTAGG})
_CALL = re.compile(r"\b(\w+)\s*\(")
_CALLED_WITH_WORDS = re.compile(r"\b(?:substring|substr|trim)\s*\(", re.IGNORECASE)
_SPELLED = re.compile(r"\b(?:substring|substr|trim)\s*\(|[()]|\bfrom\b", re.IGNORECASE)


def has_functions_of_version_12(sql: str | None, query: Query | None) -> bool:
    """Whether workers of version 11 may refuse a function in the query of a job, which is either SQL or a structure."""
    if query is not None:
        queries = [each for each, _ in queries_in(query)]
        if any(_is_new(each) for each in queries):
            return True
        sql = query.model_dump_json()
    sql = sql or ""
    called = (found[1].lower() for found in _CALL.finditer(sql))
    return any(name not in _FUNCTIONS_BEFORE_12 and name not in _WORDS for name in called) or _has_words(sql)


def _is_new(query: Query) -> bool:
    return any(
        call.function not in _AGGREGATES_BEFORE_12
        or (call.function in _ORDERED and call.order_by is None)
        or len(call.arguments) > 2
        or (call.function is AggregateFunction.APPROX_COUNT_DISTINCT and len(call.arguments) > 1)
        for call in query.aggregates
    )


def _has_words(sql: str) -> bool:
    """Whether FROM stands between the parentheses of `substring` or `trim`, outside of inner parentheses."""
    if _CALLED_WITH_WORDS.search(sql) is None:
        return False
    opened: list[bool] = []
    for found in _SPELLED.finditer(sql):
        text = found[0].lower()
        if text.endswith("("):
            opened.append(len(text) > 1)
        elif text == ")":
            del opened[-1:]
        elif opened and opened[-1]:
            return True
    return False
