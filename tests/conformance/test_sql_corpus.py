"""SQL as Spark reads it: each text by `spark.sql`, and by the front end, the builder, the rules and the lowering.

Columns are compared by position and type; their names are the job's own. Rows are compared in order where the text's
ORDER BY is total (`ORDERED`), else as multisets, floats to ten digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from service.spec.bound import tables_of
from service.spec.compile import compile_job
from service.spec.job import JobSpec
from service.spec.options import JobSettings
from service.spec.types import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, Field, Schema, decimal
from workers.engine.plan.builder import build
from workers.engine.planner import plan_query
from workers.engine.spark.lowering import lower
from workers.engine.stats.statistics import Statistics

pytestmark = pytest.mark.spark

SEED = 20_130_101

SCHEMAS = {
    "t": Schema(
        (
            Field("id", BIGINT),
            Field("g", INT),
            Field("k", STRING),
            Field("m", decimal(10, 2)),
            Field("x", DOUBLE),
            Field("b", BIGINT),
            Field("d", DATE),
            Field("q", BOOLEAN),
        )
    ),
    "u": Schema((Field("g", INT), Field("name", STRING), Field("x", DOUBLE), Field("m", decimal(12, 4)))),
}

ORDERED = [
    "SELECT id, g FROM t ORDER BY id",
    "SELECT id, g FROM t ORDER BY id DESC LIMIT 7",
    "SELECT id AS i, x FROM t ORDER BY x, i",
    "SELECT id, x FROM t ORDER BY x DESC, id",
    "SELECT id, x FROM t ORDER BY x ASC NULLS LAST, id DESC",
    "SELECT id, k FROM t ORDER BY k DESC NULLS FIRST, id",
    "SELECT id, g FROM t ORDER BY 2 DESC, 1",
    "SELECT id, g AS h FROM t ORDER BY h + 1, -id",
    "SELECT id FROM t ORDER BY g, k, id LIMIT 11",
    "SELECT id FROM t ORDER BY length(k) NULLS LAST, id",
    "SELECT 5 AS five, id FROM t ORDER BY five, id",
    "SELECT 2 AS two, id, g FROM t ORDER BY 1 DESC, 2 DESC",
    "SELECT g AS n, 1 AS one, id FROM t ORDER BY one, id LIMIT 9",
    "SELECT DISTINCT g FROM t ORDER BY g",
    "SELECT DISTINCT g, q FROM t ORDER BY q DESC, g LIMIT 4",
    "SELECT g, COUNT(*) AS n FROM t GROUP BY g ORDER BY g",
    "SELECT g, COUNT(*) AS n FROM t GROUP BY g ORDER BY n DESC, g LIMIT 3",
    "SELECT g, COUNT(*) FROM t GROUP BY g ORDER BY COUNT(*) DESC, 1",
    "SELECT g, COUNT(*) FROM t GROUP BY g ORDER BY 2, 1",
    "SELECT g FROM t GROUP BY g ORDER BY MAX(id)",
    "SELECT g, 1 AS c, SUM(b) AS s FROM t GROUP BY g ORDER BY c, g DESC",
    "SELECT g, SUM(m) AS s FROM t WHERE m > 0 GROUP BY g HAVING COUNT(*) > 2 ORDER BY s, g",
    "SELECT g, COUNT(DISTINCT k) AS n FROM t GROUP BY g HAVING n > 1 ORDER BY n * 10 + COALESCE(g, 0), g",
    "SELECT t.id, u.name FROM t JOIN u ON t.g = u.g ORDER BY t.id, u.name",
    "SELECT id, m FROM t WHERE id < 0 ORDER BY m",
    "SELECT id FROM t ORDER BY id LIMIT 0",
    "SELECT id, g FROM (SELECT id, g FROM t ORDER BY id DESC LIMIT 9) x ORDER BY g, id",
    "SELECT g, 1 AS n FROM t UNION ALL SELECT b, m FROM t ORDER BY g, n LIMIT 40",
    "SELECT g FROM t UNION SELECT g FROM u ORDER BY 1",
    "SELECT DISTINCT COUNT(*) AS n FROM t GROUP BY g, k ORDER BY n DESC",
    "SELECT DISTINCT q, COUNT(*) AS n FROM t GROUP BY q, k ORDER BY n + 1, q",
    "SELECT g, q, SUM(b) AS s FROM t GROUP BY ROLLUP (g, q) ORDER BY GROUPING_ID(), g, q",
    "SELECT 'all' AS label, g, COUNT(*) AS n FROM t GROUP BY ROLLUP (label, g) ORDER BY label, g, n",
]

UNORDERED = [
    "SELECT * FROM t",
    "SELECT t.* FROM t WHERE g = 1",
    "SELECT id, m * 2, m / 3, m + b, x * 2 FROM t",
    "SELECT id, CAST(m AS INT), CAST(g AS STRING), CAST(x AS DECIMAL(10,1)) FROM t WHERE x BETWEEN -10 AND 10",
    "SELECT id, m / CAST(3 AS BIGINT) FROM t",
    "SELECT id, g % 3, -g, abs(g), g DIV 2 FROM t WHERE g <> 0",
    "SELECT id, CASE WHEN g > 0 THEN 'p' WHEN g < 0 THEN 'n' ELSE k END FROM t",
    "SELECT id, CASE g WHEN 1 THEN m WHEN 2 THEN 0 END FROM t",
    "SELECT id, COALESCE(k, 'none'), NULLIF(k, ''), UPPER(k), length(k) FROM t",
    "SELECT id, year(d), month(d), d FROM t WHERE d >= DATE '2013-01-02'",
    "SELECT id, 1, 'a', 1.5, NULL IS NULL FROM t",
    "SELECT id FROM t WHERE k LIKE 'a%'",
    "SELECT id FROM t WHERE k NOT LIKE 'a%'",
    "SELECT id FROM t WHERE k IN ('a', 'b', NULL)",
    "SELECT id FROM t WHERE g NOT IN (1, 2)",
    "SELECT id FROM t WHERE NOT q OR k IS NULL",
    "SELECT id FROM t WHERE x = x AND x IS NOT NULL",
    "SELECT id FROM t WHERE x > 1 AND (g = 1 OR g IS NULL) AND m BETWEEN -5 AND 5",
    "SELECT id FROM t WHERE k <=> NULL",
    "SELECT DISTINCT x FROM t",
    "SELECT DISTINCT g, k FROM t",
    "SELECT DISTINCT 1 AS one FROM t",
    "SELECT COUNT(*), COUNT(k), COUNT(DISTINCT k), SUM(m), AVG(m), MIN(k), MAX(x) FROM t",
    "SELECT COUNT(*), SUM(b), AVG(x), COUNT(DISTINCT g, k) FROM t WHERE id < 0",
    "SELECT g, COUNT(DISTINCT g), SUM(DISTINCT m), AVG(DISTINCT b) FROM t GROUP BY g",
    "SELECT k, COUNT(DISTINCT m) FILTER (WHERE g > 0), COUNT(*) FILTER (WHERE q), SUM(b) FROM t GROUP BY k",
    "SELECT k, COUNT(DISTINCT g), COUNT(DISTINCT m), COUNT(DISTINCT x) FILTER (WHERE q) FROM t GROUP BY k",
    "SELECT x, COUNT(*), MIN(id) FROM t GROUP BY x",
    "SELECT m, x, COUNT(DISTINCT k) FROM t GROUP BY m, x",
    "SELECT g % 2, COUNT(*) FROM t GROUP BY g % 2",
    "SELECT g % 2 AS p, COUNT(DISTINCT b) FROM t GROUP BY p",
    "SELECT UPPER(k) AS big, q, MAX(m) FROM t GROUP BY 1, 2",
    "SELECT 7 AS c, COUNT(*) FROM t GROUP BY 1",
    "SELECT g + 1, COUNT(*) FROM t GROUP BY g",
    "SELECT SUM(m) / COUNT(*), MAX(b) - MIN(b) FROM t",
    "SELECT g, SUM(m) + SUM(b), COUNT(*) * 2 FROM t GROUP BY g",
    "SELECT g, MIN(DISTINCT k), MAX(DISTINCT m) FROM t GROUP BY g",
    "SELECT g FROM t GROUP BY g HAVING SUM(b) > 0",
    "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING g > 0 AND COUNT(DISTINCT k) > 1",
    "SELECT -g AS g, COUNT(*) AS n FROM t GROUP BY -g HAVING -g > 0",
    "SELECT COUNT(*) FROM t HAVING COUNT(*) > 1000",
    "SELECT t.id, u.name FROM t JOIN u ON t.g = u.g",
    "SELECT t.id, u.name FROM t JOIN u ON t.x = u.x",
    "SELECT t.id, u.name FROM t JOIN u ON t.m = u.m",
    "SELECT t.id, u.name FROM t JOIN u ON t.g = u.g AND t.x < u.x",
    "SELECT t.id, u.name FROM t LEFT JOIN u ON t.g = u.g AND u.name <> 'uno'",
    "SELECT t.id, u.name FROM t LEFT JOIN u ON t.g = u.g AND t.q",
    "SELECT t.id, u.name FROM t RIGHT JOIN u ON t.g = u.g AND t.id < 40",
    "SELECT t.id, u.name FROM t FULL OUTER JOIN u ON t.g = u.g AND t.m > 0",
    "SELECT t.id FROM t LEFT SEMI JOIN u ON t.g = u.g AND u.x > 0",
    "SELECT t.id FROM t LEFT ANTI JOIN u ON t.g = u.g",
    "SELECT t.id, u.name FROM t CROSS JOIN u WHERE t.g > u.g",
    "SELECT * FROM t JOIN u USING (g, x, m)",
    "SELECT * FROM t LEFT ANTI JOIN u USING (g)",
    "SELECT id, name FROM t LEFT JOIN u USING (g)",
    "SELECT g, COUNT(*) FROM t RIGHT JOIN u USING (g) GROUP BY g",
    "SELECT g, name FROM t FULL JOIN u USING (g)",
    "SELECT a.id, c.id AS other FROM t AS a JOIN t AS c ON a.g = c.g AND a.k = c.k AND a.id < c.id",
    "SELECT u.name, COUNT(DISTINCT t.k), SUM(t.m) FROM t JOIN u ON t.g = u.g GROUP BY u.name",
    "SELECT t.g, COUNT(DISTINCT u.name) FROM t LEFT JOIN u ON t.g = u.g GROUP BY t.g",
    "SELECT a.g, COUNT(*) FROM t a JOIN u ON a.g = u.g JOIN u AS v ON u.g = v.g GROUP BY a.g",
    "SELECT COUNT(*) FROM t JOIN u ON t.g = u.g WHERE u.name IS NOT NULL",
    # Queries in the place of tables
    "SELECT * FROM (SELECT g, COUNT(*) AS n FROM t GROUP BY g) x WHERE n > 5",
    "SELECT n, COUNT(*) FROM (SELECT g, k, COUNT(*) FROM t GROUP BY g, k) AS x (a, b, n) GROUP BY n",
    "SELECT x.g, y.name, n FROM (SELECT g, COUNT(DISTINCT k) AS n FROM t GROUP BY g) x LEFT JOIN u AS y ON x.g = y.g",
    "SELECT AVG(s), COUNT(DISTINCT c) FROM (SELECT g, SUM(m) AS s, MIN(k) AS c, MAX(x) FROM t GROUP BY g) a",
    "SELECT a.g, SUM(a.n * b.n) FROM (SELECT g, COUNT(*) AS n FROM t GROUP BY g) a "
    "JOIN (SELECT g, COUNT(*) AS n FROM u GROUP BY g) b ON a.g = b.g GROUP BY a.g",
    "SELECT COUNT(*) FROM (SELECT DISTINCT g, k FROM t) x",
    "SELECT COUNT(*) FROM (SELECT 1 FROM t LIMIT 7) x",
    "SELECT g, COUNT(*) FROM (SELECT * FROM (SELECT * FROM t WHERE q) t WHERE g > 0) t GROUP BY g",
    "SELECT a.id, c.id AS other FROM (SELECT * FROM t WHERE q) a, (SELECT * FROM t WHERE NOT q) c "
    "WHERE a.g = c.g AND a.k = c.k",
    "WITH a AS (SELECT g, m FROM t WHERE m > 0), b AS (SELECT g, SUM(m) AS s FROM a GROUP BY g) "
    "SELECT a.g, a.m, b.s FROM a JOIN b ON a.g = b.g",
    "WITH t AS (SELECT g, k FROM t WHERE q) SELECT k, COUNT(DISTINCT g) FROM t GROUP BY k",
    "WITH a (p, r) AS (SELECT g, COUNT(*) FROM t GROUP BY g) SELECT x.p, y.r FROM a x LEFT JOIN a y ON x.p = y.p + 1",
    "SELECT g, k FROM t UNION ALL SELECT g, name FROM u UNION ALL SELECT b, NULL FROM t",
    "SELECT m FROM t UNION ALL SELECT m FROM u UNION ALL SELECT g FROM t",
    "SELECT x FROM t UNION SELECT m FROM u",
    "SELECT d FROM t UNION ALL SELECT TIMESTAMP '2013-01-02 03:04:05' FROM u",
    "SELECT g, COUNT(DISTINCT k) FROM (SELECT g, k FROM t UNION ALL SELECT g, name FROM u) x GROUP BY g",
    "(SELECT g FROM t ORDER BY id LIMIT 3) UNION ALL (SELECT g FROM u)",
    "SELECT DISTINCT SUM(b) > 0, MAX(q) FROM t GROUP BY g",
    "SELECT u.name FROM t, u WHERE t.g = u.g AND t.id < 9",
    "SELECT v.name, COUNT(*) FROM u, u AS v, t WHERE u.g = t.g AND v.g = t.g GROUP BY v.name",
    "SELECT COUNT(*) FROM t, u WHERE (t.g = u.g AND u.x > 0) OR (t.g = u.g AND t.q)",
    # Further aggregates
    "SELECT VAR_POP(b), VAR_SAMP(x), VARIANCE(m), STDDEV_POP(g), STDDEV_SAMP(m), STDDEV(b), STD(x) FROM t WHERE x < 9",
    "SELECT g, VAR_SAMP(id), STDDEV_POP(m) FILTER (WHERE q), VAR_POP(DISTINCT b) FROM t GROUP BY g",
    "SELECT g, LISTAGG(k, ', ') WITHIN GROUP (ORDER BY id), STRING_AGG(k) WITHIN GROUP (ORDER BY id DESC) "
    "FROM t GROUP BY g",
    "SELECT LISTAGG(DISTINCT k, '|') WITHIN GROUP (ORDER BY k DESC) FROM t",
    "SELECT q, LISTAGG(id) WITHIN GROUP (ORDER BY id) FILTER (WHERE g > 0) FROM t GROUP BY q",
    "SELECT g, APPROX_COUNT_DISTINCT(k), APPROX_COUNT_DISTINCT(x) FILTER (WHERE q) FROM t GROUP BY g",
    "SELECT g, PERCENTILE(b, 0.5), PERCENTILE(m, 0.9) FILTER (WHERE q), MEDIAN(id) FROM t GROUP BY g",
    "SELECT PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY id), MEAN(m), PERCENTILE(id, 1) FROM t",
    "SELECT COUNT(DISTINCT k), VAR_POP(id), LISTAGG(k, '') WITHIN GROUP (ORDER BY id) FROM t",
    # Grouping sets
    "SELECT g, k, COUNT(*), SUM(m), COUNT(DISTINCT b) FROM t GROUP BY ROLLUP (g, k)",
    "SELECT g, q, GROUPING(g), GROUPING(q), GROUPING_ID(), COUNT(*) FROM t GROUP BY CUBE (g, q)",
    "SELECT g, k, q, COUNT(*), GROUPING_ID(k, g, q) FROM t GROUP BY GROUPING SETS ((k), (g, q), (), (g, k, q))",
    "SELECT g, k, COUNT(*) FROM t GROUP BY g, ROLLUP (k, q)",
    "SELECT g, SUM(g), COUNT(g) FROM t GROUP BY CUBE (g)",
    "SELECT g % 2 AS p, UPPER(k), GROUPING(UPPER(k)), MAX(g) FROM t GROUP BY ROLLUP (g % 2, UPPER(k)) "
    "HAVING MAX(g) > 0",
    "SELECT g, k, COUNT(*) FROM t GROUP BY g, k WITH ROLLUP",
    "SELECT g, k, COUNT(*) FROM t GROUP BY g, k WITH CUBE",
    "SELECT g, k, COUNT(*) FROM t GROUP BY GROUPING SETS ((g), (g), (k))",
    "SELECT g, k FROM t GROUP BY ROLLUP (g, k)",
    "SELECT DISTINCT g FROM t GROUP BY ROLLUP (g)",
    "SELECT g, COUNT(*) FROM t WHERE id < 0 GROUP BY ROLLUP (g)",
    "SELECT u.name, t.g, SUM(t.m) FROM t JOIN u ON t.g = u.g GROUP BY GROUPING SETS ((u.name), (t.g), ())",
    "SELECT g, MAX(n) FROM (SELECT g, k, COUNT(*) AS n FROM t GROUP BY CUBE (g, k)) x GROUP BY g",
    # Constants among the keys
    "SELECT 'x' AS c, concat('x', k) AS d, k, COUNT(*) FROM t GROUP BY ROLLUP (1, k)",
    "SELECT 5 AS five, g, g + 5, g * -5, COUNT(*) FROM t GROUP BY CUBE (five, g) HAVING five IS NULL OR g > 0",
    "SELECT current_date = current_date, current_date AS today, g, COUNT(*) FROM t GROUP BY ROLLUP (today, g)",
    "SELECT DISTINCT 'x' AS c, g FROM t GROUP BY GROUPING SETS ((1), (2), ())",
]

REWRITES = [
    {"agg_phase": "ONE_PHASE"},
    {"distinct_split.enabled": "true", "distinct_split.bucket_num": 3},
]


def rows_of_t() -> list[tuple[Any, ...]]:
    random = Random(SEED)

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.15 else value

    return [
        (
            number,
            maybe(random.randint(-2, 3)),
            maybe(random.choice(["a", "ab", "b", "", "NULL", "ä'`"])),
            maybe(Decimal(random.randint(-999, 999)) / 100),
            maybe(random.choice([0.0, -0.0, math.nan, math.inf, 1.5, -2.25])),
            maybe(random.choice([0, 1, 2**40, random.randint(-9, 9)])),
            maybe(date(2013, 1, random.randint(1, 3))),
            maybe(random.random() < 0.5),
        )
        for number in range(80)
    ]


ROWS_OF_U = [
    (None, "nobody", 0.0, None),
    (1, "one", -0.0, Decimal("1.5")),
    (1, "uno", math.nan, Decimal("-0.07")),
    (2, "two", None, Decimal(0)),
    (-1, "", 1.5, Decimal("9.9900")),
    (9, None, math.inf, None),
]


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[dict[str, DataFrame]]:
    """Both tables, as Spark's views and as DataFrames."""
    print(f"rows by seed {SEED}")  # noqa: T201 - shown where a test fails
    changed = {
        "spark.sql.adaptive.enabled": "false",
        # Compiling generated code would take most of the time.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    before = {key: spark.conf.get(key) for key in changed}
    for key, value in changed.items():
        spark.conf.set(key, value)
    frames = {}
    for name, rows in {"t": rows_of_t(), "u": ROWS_OF_U}.items():
        ddl = ", ".join(f"{field.name} {field.type}" for field in SCHEMAS[name].fields)
        frames[name] = spark.createDataFrame(rows, ddl).coalesce(1).cache()
        frames[name].createOrReplaceTempView(name)
    yield frames
    for name, frame in frames.items():
        spark.catalog.dropTempView(name)
        frame.unpersist()
    for key, old in before.items():
        spark.conf.set(key, old or "")


@pytest.mark.parametrize(
    ("text", "ordered"), [*((text, True) for text in ORDERED), *((text, False) for text in UNORDERED)]
)
def test_a_text_means_what_it_means_to_spark(
    spark: SparkSession, tables: dict[str, DataFrame], text: str, ordered: bool
) -> None:
    expected = outcome(spark.sql(text), ordered)
    sources = {name: {"format": "csv", "path": name, "schema": "a INT"} for name in SCHEMAS}
    query = compile_job(JobSpec.model_validate({"tables": sources, "sql": text}), SCHEMAS)
    scans = {
        table.alias: tables[table.table].toDF(*[f"{table.alias}.{name}" for name in tables[table.table].columns])
        for table in tables_of(query)
    }
    built = build(query)
    assert outcome(lower(built, scans), ordered) == expected
    seen = [built]
    for settings in REWRITES:
        plan = plan_query(query, Statistics({}, {}, slots=2), JobSettings.model_validate(settings))
        if plan.after not in seen:
            seen.append(plan.after)
            assert outcome(lower(plan.after, scans), ordered) == expected


def outcome(frame: DataFrame, ordered: bool) -> tuple[list[str], list[tuple[str, ...]]]:
    """The types of the columns, and the rows as texts."""
    rows = [tuple(map(cell, row)) for row in frame.collect()]
    return [field.dataType.simpleString() for field in frame.schema], rows if ordered else sorted(rows)


def cell(value: object) -> str:
    # -0.0 + 0.0 is 0.0: which of the two stands for a group is the rows' order.
    return f"{value + 0.0:.10g}" if isinstance(value, float) else repr(value)
