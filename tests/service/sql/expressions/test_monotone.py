"""Conditions on groups that stay true, against groups that grow row by row."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import duckdb
import pytest

from service.sql.compile import compile_sql
from service.sql.ddl import parse_schema
from service.sql.expressions.analysis import cannot_be_negative, columns_by_name, tree_of, turning_part
from service.sql.resolve.binder import bind
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import UNKNOWN, Field

COLUMNS = "k STRING, g INT, i INT, b BIGINT, d DOUBLE, m DECIMAL(10,2), s STRING, q BOOLEAN, ts TIMESTAMP"
SCHEMAS = {"t": parse_schema(COLUMNS, "/")}

STAY = (
    "k > 'a'",
    "k IN ('a', 'b') OR g IS NULL",
    "COUNT(*) > 3",
    "COUNT(i) >= 3",
    "3 < COUNT(*)",
    "3 <= COUNT(DISTINCT i)",
    "COUNT(*) > g",
    "COUNT(*) FILTER (WHERE q) > 1",
    "MAX(i) > 5",
    "MAX(d) >= 0.5",
    "MAX(s) > 'm'",
    "MAX(q)",
    "MIN(i) < 5",
    "-3 > MIN(b)",
    "NOT COUNT(*) <= 3",
    "NOT (MAX(i) < 5 AND MIN(i) > -5)",
    "NOT MIN(q)",
    "MAX(i) IS NOT NULL",
    "COUNT(*) > 2 AND MAX(i) > 1 AND k <> 'z'",
    "COUNT(*) > 9 OR MIN(i) < 0",
    "COUNT(*) + COUNT(i) - 1 > 5",
    "COUNT(*) * 2 > 5",
    "MAX(b) - MIN(i) > 10",
    "-MIN(m) > 1",
    "CAST(COUNT(*) AS DOUBLE) > 2.5",
    "g BETWEEN MIN(i) AND MAX(i)",
    "SUM(CASE WHEN q THEN 1 ELSE 0 END) > 2",
    "SUM(abs(i)) > 20",
    "SUM(if(q, 2, 0) + length(s)) > 9",
    "SUM(CAST(coalesce(length(s), 1) AS BIGINT) * 2) > 9",
)
TURN = (
    "COUNT(*) < 3",
    "COUNT(*) = 3",
    "COUNT(*) <> 3",
    "NOT COUNT(*) > 3",
    "COUNT(*) BETWEEN 1 AND 3",
    "COUNT(*) % 2 = 0",
    "COUNT(*) - COUNT(i) < 2",
    "MAX(i) < 5",
    "MIN(i) > 5",
    "MIN(i) > -5 OR COUNT(*) > 99",
    "MAX(i) > 1 AND SUM(i) > 1",
    "SUM(i) > 5",
    "SUM(CASE WHEN q THEN 1 ELSE -1 END) > 0",
    "AVG(i) > 1",
    "-MAX(i) > -5",
    "MAX(i) IS NULL",
    "MIN(q)",
    "STDDEV_POP(i) < 3",
    "CASE WHEN COUNT(*) > 3 THEN FALSE ELSE TRUE END",
    "MAX(d) * -1 > 0",
)
UNKNOWN_TO_US = (
    "NOT COUNT(*) BETWEEN -5 AND 3",
    "COUNT(*) > COUNT(i) + 1",
    "LAST_VALUE(q ORDER BY ts)",
    "MAX(s) > 5",
    "MAX(d) + MAX(d) > 1",
    "MAX(ts) > current_timestamp()",
    "APPROX_COUNT_DISTINCT(i) > 3",
    "SUM(i * i) > 3",
    "COUNT(*) / 2 > 3",
    "(COUNT(*) > 3) = TRUE",
    "TRY_CAST(COUNT(*) AS INT) > 3",
)
"""Some of which stay true, or may fail."""


def compiled(having: str) -> BoundQuery:
    return bind(compile_sql(f"SELECT k, g FROM t GROUP BY k, g HAVING {having}", SCHEMAS).query, SCHEMAS)


def turning(having: str) -> str | None:
    query = compiled(having)
    assert query.having is not None
    keys = [Field(key.name, key.expression.type or UNKNOWN) for key in query.keys]
    part = turning_part(query.having, keys, query.calls)
    return None if part is None else str(part)


@pytest.mark.parametrize("having", STAY)
def test_it_is_known_to_stay(having: str) -> None:
    assert turning(having) is None


@pytest.mark.parametrize("having", TURN)
def test_what_turns_is_never_taken_to_stay(having: str, histories: duckdb.DuckDBPyConnection) -> None:
    assert turning(having) is not None
    assert _turns(having, histories), "no rows were found on which it turns"


@pytest.mark.parametrize("having", UNKNOWN_TO_US)
def test_what_is_not_known_to_stay_is_taken_to_turn(having: str) -> None:
    assert turning(having) is not None


@pytest.mark.parametrize("having", STAY)
def test_what_is_taken_to_stay_does(having: str, histories: duckdb.DuckDBPyConnection) -> None:
    assert not _turns(having, histories)


def test_the_part_that_turns_is_told() -> None:
    assert turning("COUNT(*) > 3 AND MAX(i) < 5 AND k > 'a'") == "MAX(t.i) < 5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", True),
        ("NULL", True),
        ("abs(i)", True),
        ("length(s)", True),
        ("CASE WHEN q THEN 1 END", True),
        ("CASE WHEN q THEN 1 ELSE i END", False),
        ("if(i > 0, i, 0)", False),
        ("coalesce(length(s), 0)", True),
        ("CAST(length(s) AS DECIMAL(10,2)) * 2 + 1", True),
        ("length(s) - 1", False),
        ("-1", False),
        ("i", False),
        ("CAST('-1' AS INT)", False),
    ],
)
def test_what_is_plainly_not_negative(text: str, expected: bool) -> None:
    (scalar,) = (
        item.expression for item in bind(compile_sql(f"SELECT {text} AS x FROM t", SCHEMAS).query, SCHEMAS).select
    )
    tree = tree_of(
        scalar, columns_by_name(tuple(Field(f"t.{field.name}", field.type) for field in SCHEMAS["t"].fields))
    )
    assert tree is not None
    assert cannot_be_negative(tree) is expected


def _turns(having: str, histories: duckdb.DuckDBPyConnection) -> bool:
    """Whether it is true of some group, and then not, as rows of that group come."""
    shown = f"""
        SELECT history, moment FROM moments JOIN t USING (history) WHERE t.number <= moment
        GROUP BY history, moment, k, g HAVING {having}
    """
    told = histories.execute(
        f"WITH shown AS ({shown}) SELECT COUNT(*) FROM moments m "
        "JOIN shown before ON before.history = m.history AND before.moment = m.moment - 1 "
        "LEFT JOIN shown after ON after.history = m.history AND after.moment = m.moment WHERE after.history IS NULL"
    ).fetchone()
    assert told is not None
    return bool(told[0])


@pytest.fixture(scope="module")
def histories() -> Iterator[duckdb.DuckDBPyConnection]:
    """Groups of eight rows, one a history, and the moments at which they are looked at: behind each row."""
    random = Random(20261122)
    rows = []
    for history in range(200):
        g = random.choice([None, 0, 2])
        for number in range(8):
            i = random.choice([None, *range(-9, 10)])
            value = random.choice([None, -1.5, 0.0, 0.5, 3.0])
            at = f"2026-01-01 00:00:{random.randint(0, 59):02d}.{number}"
            text, flag = random.choice([None, "", "a", "mm", "zz"]), random.choice([None, True, False])
            rows.append((history, number, "b", g, i, i, value, value, text, flag, at))
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t (history INT, number INT, {COLUMNS})")
        literals = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
        connection.execute(f"INSERT INTO t VALUES {literals}")
        connection.execute("CREATE TABLE moments AS SELECT history, number AS moment FROM t")
        yield connection


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) else str(value)
