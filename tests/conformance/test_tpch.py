"""TPC-H's 22 queries through the engine, every setting at its default, against DuckDB's answers.

The tables are tpchgen-cli's at `SCALE`. DuckDB runs the specification's texts (`tpch/specified`; the dates of their
intervals worked out). The engine runs the same text, or, where it has a subquery that is refused, the one of
`tpch/joined`, which joins instead. Rows are compared in order; floats within 1e-9, quotients within 1e-6: DuckDB
divides decimals as doubles.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from service.spec.bound import BoundQuery
from service.spec.compile import compile_job
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.options import JobSettings
from tests.conformance.laboratory import table_input
from tests.support.rows import difference_from_duckdb
from workers.engine.spark.engine import Engine, TableInput

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCALE = os.environ.get("EVENKEEL_TPCH_SCALE", "0.01")
TEXTS = Path(__file__).parent / "tpch"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")

REFUSED_AS_SPECIFIED = {
    "q02": "A subquery",
    "q04": "EXISTS with a subquery",
    "q11": "A subquery",
    "q15": "A subquery",
    "q16": "A subquery",
    "q17": "A subquery",
    "q18": "A subquery",
    "q20": "A subquery",
    "q21": "EXISTS with a subquery",
    "q22": "A subquery",
}
"""What each text that is refused is refused for; every other runs as it is."""

QUERIES = [f"q{number:02}" for number in range(1, 23)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated tables, a Parquet file each."""
    directory = tmp_path_factory.mktemp("tpch")
    generator = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(generator), "parquet", "--scale-factor", SCALE, "--output-dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return directory


@pytest.fixture(scope="module")
def tables(root: Path) -> dict[str, TableInput]:
    """The tables as a worker finds them."""
    return {name: table_input(root, name, f"{name}.parquet") for name in TABLES}


@pytest.fixture(scope="module")
def duck(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB over the same files."""
    with duckdb.connect(config={"threads": 2}) as connection:
        for name in TABLES:
            connection.execute(f"CREATE VIEW {name} AS FROM '{root / name}.parquet'")
        yield connection


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """As a worker's: adaptive execution is on."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "4")
    return session


def compiled(text: str, tables: dict[str, TableInput]) -> BoundQuery:
    sources = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in tables.items()}
    spec = JobSpec.model_validate({"tables": sources, "sql": text})
    return compile_job(spec, {name: table.schema for name, table in tables.items()})


@pytest.mark.parametrize("query", QUERIES)
def test_the_engine_answers_as_duckdb_does(
    session: SparkSession, tables: dict[str, TableInput], duck: duckdb.DuckDBPyConnection, query: str
) -> None:
    folder = "joined" if query in REFUSED_AS_SPECIFIED else "specified"
    bound = compiled((TEXTS / folder / f"{query}.sql").read_text(), tables)
    got = Engine(session, 2).plan(bound, tables, JobSettings()).frame.collect()
    expected = duck.execute((TEXTS / "specified" / f"{query}.sql").read_text()).fetchall()
    assert expected
    assert difference_from_duckdb(expected, got) is None


def test_what_is_refused_is_named(tables: dict[str, TableInput]) -> None:
    refused = {}
    for query in QUERIES:
        try:
            compiled((TEXTS / "specified" / f"{query}.sql").read_text(), tables)
        except SpecError as error:
            refused[query] = error.issues[0].detail.partition(" cannot be used here.")[0]
    assert refused == REFUSED_AS_SPECIFIED
