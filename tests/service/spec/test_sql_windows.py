"""TUMBLE and HOP in SQL: what they compile into, and what is refused where."""

from __future__ import annotations

from typing import Any

import pytest

from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.query import Query
from service.spec.sql import compile_sql

SCHEMAS = {"s": parse_schema("k STRING, v BIGINT, ts TIMESTAMP, session STRING", "/x")}
TEN = "INTERVAL '10' MINUTE"
TUMBLE = f"TUMBLE(ts, {TEN})"
HOP = f"HOP(s.ts, INTERVAL '1' MINUTE, {TEN})"


def compiled(sql: str) -> Query:
    query = compile_sql(sql, SCHEMAS).query
    # What is posted as a structure is the same as what SQL compiles into.
    assert Query.model_validate(query.model_dump(mode="json")) == query
    return query


def window_of(sql: str) -> dict[str, Any]:
    window = compiled(sql).window
    assert window is not None
    return window.model_dump(mode="json")


def refused(sql: str) -> tuple[str, int | None, str]:
    with pytest.raises(SpecError) as caught:
        compile_sql(sql, SCHEMAS)
    issue = caught.value.issues[0]
    return issue.code, issue.column, issue.detail


def test_a_tumbling_window_and_its_ends() -> None:
    sql = f"SELECT k, TUMBLE_START(s.ts, {TEN}) AS b, TUMBLE_END(ts, INTERVAL 600 SECONDS) e, COUNT(*) FROM s "
    query = compiled(sql + f"GROUP BY {TUMBLE}, k HAVING TUMBLE_END(ts, {TEN}) > '2024-01-01' AND COUNT(*) > 1")
    assert window_of(sql + f"GROUP BY k, ({TUMBLE})") == {
        "kind": "tumble",
        "column": "`s`.`ts`",
        "size": "10min",
        "start": "b",
        "end": "e",
    }
    assert [key.name for key in query.group_by] == ["k"]
    assert [item.expression for item in query.select] == ["`s`.`k`", "`b`", "`e`", "`COUNT(*)`"]
    assert query.having == "`e` > '2024-01-01' AND `COUNT(*)` > 1"


def test_a_hopping_window_has_its_slide_first() -> None:
    sql = f"SELECT HOP_END(ts, INTERVAL '60' SECOND, {TEN}), COUNT(*) FROM s GROUP BY {HOP}"
    expected = {"kind": "hop", "column": "`s`.`ts`", "size": "10min", "slide": "1min"}
    assert window_of(sql) == {**expected, "start": "window_start", "end": "window_end"}
    assert [item.name for item in compiled(sql).select] == ["window_end", "COUNT(*)"]


def test_a_name_that_is_taken_is_left_to_its_column() -> None:
    window = window_of(f"SELECT k AS window_start, COUNT(*) AS window_end FROM s GROUP BY {TUMBLE}, k")
    assert (window["start"], window["end"]) == ("window_start_2", "window_end_2")


def test_a_query_without_a_window_is_told_as_before() -> None:
    assert "window" not in compiled("SELECT k FROM s").model_dump(mode="json")


def test_distinct_keeps_its_meaning_where_no_end_is_selected() -> None:
    repeated = compiled(f"SELECT DISTINCT COUNT(*) AS n FROM s GROUP BY {TUMBLE}")
    assert repeated.window is None
    assert repeated.source.kind == "query"
    assert compiled(f"SELECT DISTINCT TUMBLE_START(ts, {TEN}) AS b, COUNT(*) AS n FROM s GROUP BY {TUMBLE}").window


def test_a_column_may_be_called_as_a_window_is() -> None:
    assert compiled("SELECT session FROM s").select[0].expression == "`s`.`session`"


@pytest.mark.parametrize(
    ("sql", "code", "column", "words"),
    [
        (f"SELECT SESSION_START(ts, {TEN}) FROM s", "session_window", 8, "Use TUMBLE or HOP"),
        (f"SELECT COUNT(*) FROM s GROUP BY SESSION(ts, {TEN})", "session_window", 33, "Use TUMBLE or HOP"),
        ("SELECT COUNT(*) FROM s GROUP BY session_window(ts, '5 minutes')", "session_window", 33, "TUMBLE or HOP"),
        (f"SELECT {TUMBLE} FROM s", "unsupported_construct", 8, "SELECT has TUMBLE_START and TUMBLE_END"),
        (f"SELECT k FROM s WHERE {TUMBLE} IS NULL", "unsupported_construct", 23, "It stands alone in GROUP BY"),
        (f"SELECT TUMBLE_END(ts, {TEN}) FROM s", "not_grouped", 8, "needs GROUP BY TUMBLE"),
        (f"SELECT HOP_END(ts, {TEN}, {TEN}) FROM s GROUP BY {HOP}", "not_grouped", 8, "with the same intervals"),
        (f"SELECT MAX(TUMBLE_END(ts, {TEN})) FROM s GROUP BY {TUMBLE}", "unsupported_construct", 12, "of aggregates"),
        (f"SELECT 1 FROM s GROUP BY TUMBLE_START(ts, {TEN})", "unsupported_construct", 26, "GROUP BY has TUMBLE"),
        (f"SELECT TUMBLE_END(ts, {TEN}) AS e FROM s GROUP BY e", "unsupported_construct", 66, "Group by the window"),
        (f"SELECT 1 FROM s GROUP BY date_trunc('day', {TUMBLE})", "unsupported_construct", 44, "alone in GROUP BY"),
        (f"SELECT 1 FROM s GROUP BY {TUMBLE}, {HOP}", "unsupported_construct", 60, "A second window"),
        (f"SELECT 1 FROM s GROUP BY ROLLUP (k, {TUMBLE})", "unsupported_construct", 37, "in grouping sets"),
        ("SELECT 1 FROM s GROUP BY TUMBLE(ts)", "unsupported_construct", 26, "Write TUMBLE(ts, INTERVAL '10' MINUTE)"),
        (f"SELECT 1 FROM s GROUP BY HOP(ts, {TEN})", "unsupported_construct", 26, "the first interval is the slide"),
        ("SELECT 1 FROM s GROUP BY TUMBLE(ts, 5)", "unsupported_construct", 26, "anything but an interval"),
        ("SELECT 1 FROM s GROUP BY TUMBLE(ts, INTERVAL '1' MONTH)", "unsupported_construct", 26, "use DAY"),
        ("SELECT 1 FROM s GROUP BY TUMBLE(ts, INTERVAL '0' DAY)", "unsupported_construct", 26, "whole milliseconds"),
        ("SELECT 1 FROM s GROUP BY TUMBLE(ts, INTERVAL '9999' DAY)", "unsupported_construct", 26, "at most 3650 days"),
        (f"SELECT 1 FROM s GROUP BY TUMBLE(ts + {TEN}, {TEN})", "unsupported_construct", 26, "Name the column"),
        ("SELECT 1 FROM s GROUP BY CUMULATE(ts, 5)", "unsupported_function", 26, "TUMBLE(t, INTERVAL '10'"),
    ],
)
def test_what_is_refused(sql: str, code: str, column: int, words: str) -> None:
    told = refused(sql)
    assert told[:2] == (code, column)
    assert words in told[2]
