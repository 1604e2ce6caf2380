"""An expression that fails at run time is named with its place in the SQL, wherever it stands and whatever rules ran.

In each query, « » enclose the expression that fails; the place of the issue must be that of the mark.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from service.contract.job import JobSpec
from service.contract.problems import Problem
from service.sql.compile import compile_job
from service.sql.failed_expressions import QueryExpressions
from tests.conformance.combinations import ALL_FORCED, ALL_OFF
from workers.engine.spark.engine import Engine
from workers.engine.spark.error_mapping import problem_of_spark_error
from workers.engine.spark.sources import TableInput

pytestmark = pytest.mark.spark

Tables = dict[str, TableInput]

PLACES = [
    "SELECT a, «a / b» AS q FROM t",
    "SELECT a,\n       «(a + 2) / b» AS q\nFROM t",
    "SELECT 1 + («1 / 0») AS q FROM t",
    "SELECT «CAST(s AS INT)» AS q FROM t",
    "SELECT abs(«t.s::INT») AS q FROM t",
    "SELECT «to_date(s)» AS q FROM t",
    "SELECT «to_date(s, 'yyyy-MM-dd')» AS q FROM t",
    "SELECT «make_date(2024, a + 12, 1)» AS q FROM t",
    "SELECT «CAST(l AS INT)» AS q FROM t",
    "SELECT «l + a» AS q FROM t",
    "SELECT «a % b» AS q FROM t",
    "SELECT «l * 3» - 1 AS q FROM t",
    "SELECT CASE WHEN a > 0 THEN «CAST(s AS DOUBLE)» ELSE 0 END AS q FROM t",
    "SELECT a FROM t WHERE a > 0 AND «a / b» > 1",
    "SELECT a FROM t WHERE «s = 1»",
    "SELECT a FROM t WHERE «CAST(s AS INT)» IN (1, 2)",
    "SELECT «CAST(s AS INT)» AS k, COUNT(*) AS n FROM t GROUP BY k",
    "SELECT COUNT(*) AS n FROM t GROUP BY «a / b»",
    "SELECT b, SUM(«a / b») AS x FROM t GROUP BY b",
    "SELECT b, «SUM(s)» AS x FROM t GROUP BY b",
    "SELECT b, «AVG(DISTINCT s)» AS x FROM t GROUP BY b",
    "SELECT b, «SUM(l)» AS x FROM t GROUP BY b",
    "SELECT b, COUNT(DISTINCT «CAST(s AS INT)») AS x, COUNT(DISTINCT a) AS y FROM t GROUP BY b",
    "SELECT b, COUNT(DISTINCT «a / b») AS x FROM t GROUP BY b",
    "SELECT b, COUNT(*) FILTER (WHERE «a / b» > 1) AS x FROM t GROUP BY b",
    "SELECT b, COUNT(*) AS n FROM t GROUP BY b HAVING «COUNT(*) / b» > 1",
    "SELECT b, COUNT(*) AS n FROM t GROUP BY b HAVING «n % b» > 1",
    "SELECT a FROM t ORDER BY «a / b»",
    "SELECT a, SUM(b) AS x FROM t GROUP BY a ORDER BY «a / SUM(b)»",
    "SELECT a, CAST(«a / b» AS INT) AS q FROM t",
    "SELECT COUNT(*) AS n FROM t JOIN u ON t.a = «CAST(u.s AS INT)»",
    "SELECT COUNT(*) AS n FROM t LEFT JOIN u ON t.a = u.a AND «t.a / u.b» > 2",
    "SELECT u.a, SUM(«t.a / t.b») AS x FROM t JOIN u ON t.a = u.a GROUP BY u.a",
    "SELECT u.a, SUM(t.a) AS x FROM t JOIN u ON t.a = u.a WHERE «t.a / t.b» > 1 GROUP BY u.a",
    "SELECT u.a, «SUM(t.s)» AS x FROM t JOIN u ON t.a = u.a GROUP BY u.a",
    "SELECT x + 1 AS y FROM (SELECT «a / b» AS x FROM t) AS d",
    "SELECT «x / b» AS y FROM (SELECT a + 1 AS x, b FROM t) AS d",
    "WITH c AS (SELECT «CAST(s AS INT)» AS x, a FROM t) SELECT c.x, d.a FROM c JOIN c AS d ON c.a = d.a",
    "SELECT a AS q FROM u UNION ALL SELECT «CAST(s AS INT)» AS q FROM t",
    "SELECT DISTINCT «a / b» AS q FROM t",
    "SELECT t.a FROM t LEFT SEMI JOIN u ON t.a = u.a AND «u.a / u.b» > 1",
    "SELECT 1 + «array(a, b)[a + 1]» AS q FROM t",
    "SELECT «element_at(array(a, b), a + 2)» AS q FROM t",
    "SELECT «element_at(array(a, b), b)» AS q FROM t",
    "SELECT «elt(a + 1, s, s)» AS q FROM t",
    "SELECT «map(NULLIF(a, 1), b)» AS q FROM t",
    "SELECT «map_from_arrays(array(b, b), array(1, 2))» AS q FROM t",
    "SELECT ~«CAST(s AS INT)» AS q FROM t",
    "SELECT 1 + «xpath_int(s, 'a/b')» AS q FROM t",
    "SELECT 1 + «hll_sketch_estimate(CAST(s AS BINARY))» AS q FROM t",
    "SELECT «url_decode(concat(s, '%zz'))» AS q FROM t",
    "SELECT 1 + «to_number(s, '999')» AS q FROM t",
    "SELECT length(«parse_url(concat('http://', s, ' '), 'HOST')») AS q FROM t",
    "SELECT «kll_sketch_get_n_bigint(CAST(s AS BINARY))» + 1 AS q FROM t",
    "SELECT b, theta_sketch_estimate(«theta_union(CAST(s AS BINARY), CAST(s AS BINARY))») AS x FROM t",
    "SELECT «vector_inner_product(array(1.0f, 2.0f), array(1.0f))» AS q FROM t WHERE a > 0",
    "SELECT «aes_decrypt(CAST(s AS BINARY), CAST('0000111122223333' AS BINARY))» AS q FROM t",
    "SELECT a & «CAST(s AS INT)» AS q FROM t",
    "SELECT t.a, q FROM t, LATERAL (SELECT «t.a / t.b» AS q) AS l",
    "SELECT t.a, q FROM t JOIN LATERAL (SELECT «u.a / u.b» AS q FROM u WHERE u.a = t.a) AS l ON TRUE",
]

SUGGESTED = re.compile(r"Write (.+), (?:which|or cast) ")

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "off": ALL_OFF,
    "forced": ALL_FORCED,
}


@pytest.fixture
def tables(parquet_table: Callable[..., TableInput]) -> Tables:
    rows = {"a": pa.array([1, 2], pa.int32()), "b": pa.array([0, 0], pa.int32()), "s": ["x", "y"]}
    largest = pa.array([2**63 - 1, 2**63 - 1], pa.int64())
    return {
        "t": parquet_table(pa.table({**rows, "l": largest}), name="t"),
        "u": parquet_table(pa.table(rows), name="u"),
    }


def spec_of(**query: Any) -> JobSpec:
    named = {name: {"path": name, "format": "parquet"} for name in ("t", "u")}
    return JobSpec.model_validate({"tables": named, **query})


def run(spark: SparkSession, spec: JobSpec, tables: Tables, directory: Path) -> Problem | None:
    """Runs the job; returns its problem, None if it succeeds."""
    schemas = {name: table.schema for name, table in tables.items()}
    try:
        engine = Engine(spark, slots=2)
        planned = engine.plan(compile_job(spec, schemas, is_accepted=True), tables, spec.settings)
        engine.execute(planned, directory)
    except Exception as error:  # noqa: BLE001 - any error of Spark, at planning or in the run
        return problem_of_spark_error(error, expressions=QueryExpressions(spec, schemas))
    return None


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_places(spark: SparkSession, tables: Tables, tmp_path: Path, settings: Mapping[str, Any]) -> None:
    wrong: list[tuple[object, ...]] = []
    for marked in PLACES:
        sql, at = marked.replace("«", "").replace("»", ""), marked.index("«")
        problem = run(spark, spec_of(sql=sql, settings=dict(settings)), tables, tmp_path / "result")
        if problem is None:
            wrong.append((marked, "no error"))
            continue
        place = (marked.count("\n", 0, at) + 1, at - marked.rfind("\n", 0, at))
        expression = re.sub(r"\s+", " ", marked[at + 1 : marked.index("»")])
        found = {(issue.line, issue.column) for issue in problem.errors}
        if found != {place} or f"in {expression}." not in problem.detail:
            wrong.append((marked, problem.detail, found))
        suggested = SUGGESTED.search(problem.detail)
        if suggested is not None and "TRY_CAST(x" not in suggested[1]:
            written = f"{marked[:at]}({suggested[1]}){marked[marked.index('»') + 1 :]}"
            compile_job(spec_of(sql=written), {name: table.schema for name, table in tables.items()})
    assert not wrong, "\n".join(map(str, wrong))


def test_several_places_are_all_named(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    sql = "SELECT a / b AS q FROM t WHERE a / b > 0"
    problem = run(spark, spec_of(sql=sql), tables, tmp_path / "result")
    assert problem is not None
    assert {(issue.line, issue.column) for issue in problem.errors} == {(1, 8), (1, 32)}
    assert "The query has it in 2 places." in problem.detail


def test_a_structured_query_is_answered_with_the_field(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    query = {
        "source": {"kind": "table", "table": "t"},
        "select": [{"expression": "a", "name": "a"}, {"expression": "1 + a / b", "name": "q"}],
    }
    problem = run(spark, spec_of(query=query), tables, tmp_path / "result")
    assert problem is not None
    (issue,) = problem.errors
    assert (issue.code, issue.pointer, issue.line) == ("divide_by_zero", "/query/select/1/expression", None)
    assert "in a / b. Write a / NULLIF(b, 0), which" in issue.detail


def test_the_wider_type_and_the_value_are_named(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    for sql, detail in (
        (
            "SELECT CAST(s AS INT) AS q FROM t WHERE a = 1",
            "The STRING 'x' cannot be cast to INT in CAST(s AS INT). "
            "Write TRY_CAST(s AS INT), which gives NULL for such values.",
        ),
        (
            "SELECT CAST(l AS INT) AS q FROM t",
            "The BIGINT 9223372036854775807 does not fit into INT in CAST(l AS INT). "
            "Write TRY_CAST(l AS INT), which gives NULL for such values.",
        ),
        (
            "SELECT l * 2 AS q FROM t",
            "A number does not fit into its type in l * 2. Write CAST(l AS DECIMAL(38, 0)) * 2, or cast to DOUBLE.",
        ),
    ):
        problem = run(spark, spec_of(sql=sql), tables, tmp_path / "result")
        assert problem is not None
        assert problem.detail == detail


def test_a_recursion_without_an_end(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    sql = "WITH RECURSIVE r(n) MAX RECURSION LEVEL 3 AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r"
    problem = run(spark, spec_of(sql=sql), tables, tmp_path / "result")
    assert problem is not None
    assert (problem.code, problem.status) == ("recursion_limit", 422)
    assert "not complete after 3 steps" in problem.detail


def test_a_literal_that_spark_folds_while_it_plans(spark: SparkSession, tables: Tables, tmp_path: Path) -> None:
    problem = run(spark, spec_of(sql="SELECT a FROM t WHERE a > CAST('one' AS INT)"), tables, tmp_path / "result")
    assert problem is not None
    assert [(issue.code, issue.line, issue.column) for issue in problem.errors] == [("invalid_cast", 1, 27)]


CONSTANT = [
    "SELECT xpath_string('{document}', 'a') AS q FROM t",
    "SELECT xpath_string(d.c, 'a') AS q FROM (SELECT '{document}' AS c FROM t) AS d",
    "SELECT a FROM t WHERE xpath_string(concat('{document}', ''), 'a') = 'x'",
]


@pytest.mark.parametrize("sql", CONSTANT)
def test_no_document_is_loaded_that_a_constant_document_names(
    spark: SparkSession, tables: Tables, tmp_path: Path, sql: str
) -> None:
    """Spark's optimizer evaluates constants, also in a branch of CASE that no row takes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        document = f'<!DOCTYPE a SYSTEM "http://127.0.0.1:{server.getsockname()[1]}/a.dtd"><a/>'
        problem = run(spark, spec_of(sql=sql.replace("{document}", document)), tables, tmp_path / "result")
        with pytest.raises(TimeoutError):
            server.accept()
    assert problem is not None
    assert (problem.code, "does not read XML with <!DOCTYPE" in problem.detail) == ("raised_error", True)


@pytest.mark.parametrize("bound", ["abs(-2000000000)", "d.n"])
def test_a_long_sequence_of_constants_is_never_made(
    spark: SparkSession, tables: Tables, tmp_path: Path, bound: str
) -> None:
    sql = f"SELECT size(sequence(1, {bound})) AS q FROM (SELECT 2000000000 AS n FROM t) AS d"
    problem = run(spark, spec_of(sql=sql), tables, tmp_path / "result")
    assert problem is not None
    assert (problem.code, "more than" in problem.detail) == ("raised_error", True)
