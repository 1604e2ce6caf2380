"""Streams against the oracle: whatever the order of the rows and their cut into mini-batches, and whatever is tried
again, a stream's result is that of the same rows in one piece.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from service.spec.options import StateProvider
from service.spec.strategies import DistinctMethod
from service.spec.types import Schema
from tests.conformance.conftest import FACTS, NAMES, SEED, facts
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch, write_rows
from tests.support.rows import difference
from workers.engine.plan.stream_shape import Shape

pytestmark = pytest.mark.spark

_DDL = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
_ROWS = 120

PLAIN = {
    "counts": "SELECT k, COUNT(*) AS n, COUNT(i) AS c FROM s GROUP BY k",
    "every plain call": "SELECT g, SUM(i) AS si, SUM(d) AS sd, SUM(m) AS sm, AVG(b) AS ab, AVG(m) AS am, MIN(k) AS mk, "
    "MAX(d) AS md, MAX(ts) AS mt, FIRST_VALUE(k ORDER BY id) AS f, LAST_VALUE(i ORDER BY id) AS l, "
    "STDDEV_POP(i) AS sp, VAR_SAMP(d) AS vs FROM s WHERE d < 5 GROUP BY g",
    "double keys": "SELECT d, COUNT(*) AS n FROM s GROUP BY d",
    "everything": "SELECT COUNT(*) AS n, SUM(i) AS s, COUNT(DISTINCT k) AS c FROM s",
    "hidden keys": "SELECT COUNT(*) AS n, MAX(id) AS m FROM s GROUP BY k, g",
    "filters": "SELECT k, COUNT(*) FILTER (WHERE q) AS n, SUM(i) FILTER (WHERE g > 0) AS s FROM s GROUP BY k",
    "a having that stays true": "SELECT k, COUNT(*) AS n FROM s GROUP BY k HAVING COUNT(*) > 9",
    "expressions": "SELECT g % 2 AS odd, COUNT(*) + 1 AS n, SUM(i) * 2 AS s FROM s GROUP BY g % 2",
    "rollup": "SELECT k, g, COUNT(*) AS n FROM s GROUP BY ROLLUP (k, g)",
    "rollup of rows": "SELECT k, g FROM s GROUP BY ROLLUP (k, g)",
}
DISTINCT = {
    "one set": "SELECT k, COUNT(DISTINCT i) AS c FROM s GROUP BY k",
    "one set of doubles": "SELECT k, COUNT(DISTINCT d) AS c, SUM(DISTINCT f) AS s FROM s GROUP BY k",
    "text": "SELECT g, COUNT(DISTINCT k) AS c FROM s GROUP BY g",
    "with plain calls": "SELECT k, COUNT(DISTINCT i) AS c, COUNT(*) AS n, SUM(b) AS s, MIN(da) AS m FROM s GROUP BY k",
    "several sets": "SELECT k, COUNT(DISTINCT i) AS ci, COUNT(DISTINCT g, q) AS cg, COUNT(DISTINCT ts) AS ct FROM s "
    "GROUP BY k",
    "several sets with plain calls": "SELECT g, COUNT(DISTINCT i) AS ci, AVG(DISTINCT y) AS ay, SUM(DISTINCT m) AS sm, "
    "COUNT(*) AS n, AVG(w) AS aw, FIRST_VALUE(k ORDER BY id) AS f FROM s GROUP BY g",
    "filtered sets": "SELECT k, COUNT(DISTINCT i) FILTER (WHERE q) AS a, COUNT(DISTINCT i) AS b, "
    "COUNT(*) FILTER (WHERE g = 1) AS n FROM s GROUP BY k",
    "beside double keys": "SELECT d, COUNT(DISTINCT i) AS c, COUNT(*) AS n FROM s GROUP BY d",
    "rows": "SELECT DISTINCT k, g FROM s",
    "rows of doubles": "SELECT DISTINCT d, f FROM s",
    "over rows": "SELECT k, COUNT(*) AS n FROM (SELECT DISTINCT k, i, d FROM s) t GROUP BY k",
}
BITMAPS = {
    "one set": "SELECT k, COUNT(DISTINCT i) AS c FROM s GROUP BY k",
    "wide values": "SELECT k, COUNT(DISTINCT b) AS c FROM s GROUP BY k",
    "with plain calls": "SELECT MIN(k) AS mk, COUNT(DISTINCT i) AS c, COUNT(*) AS n, SUM(b) AS s, AVG(y) AS ay, "
    "AVG(d) AS ad, MAX(da) AS m, COUNT(ts) AS t, SUM(d) AS sd, g FROM s GROUP BY g",
    "filtered": "SELECT k, COUNT(DISTINCT i) FILTER (WHERE q) AS a, COUNT(DISTINCT i) AS b, "
    "SUM(i) FILTER (WHERE g = 1) AS n FROM s GROUP BY k",
    "days": "SELECT q, COUNT(DISTINCT da) AS c FROM s GROUP BY q",
    "everything": "SELECT COUNT(DISTINCT i) AS c, MIN(i) AS m FROM s",
    "hidden keys": "SELECT COUNT(DISTINCT i) AS c FROM s GROUP BY k, d",
}
"""With values kept as bitmaps, close together or not."""
ROWS = {
    "all": "SELECT id, k, d + 1 AS d FROM s WHERE i > 0",
    "united": "SELECT id, x FROM (SELECT id, i AS x FROM s WHERE q UNION ALL SELECT id, y AS x FROM s WHERE g = 1) t",
}
QUERIES = {**PLAIN, **DISTINCT, **ROWS}
JOINED = {
    "counts": "SELECT s.g, COUNT(*) AS n FROM s JOIN t ON s.g = t.g GROUP BY s.g",
    "by the right key": "SELECT COUNT(*) AS n, t.k FROM s JOIN t ON s.k = t.k GROUP BY t.k",
    "every plain call": "SELECT s.g, SUM(s.i) AS si, SUM(t.b) AS tb, AVG(s.d) AS sd, AVG(t.i) AS ti, MIN(s.k) AS mk, "
    "MAX(t.ts) AS mt, COUNT(t.m) AS cm, SUM(s.m) AS sm, FIRST_VALUE(s.k ORDER BY s.id) AS f FROM s "
    "JOIN t ON s.g = t.g GROUP BY s.g",
    "products": "SELECT s.g, SUM(s.i * t.i) AS p FROM s JOIN t ON s.g = t.g GROUP BY s.g",
    "distinct values": "SELECT s.g, COUNT(DISTINCT s.k) AS c FROM s JOIN t ON s.g = t.g GROUP BY s.g",
    "distinct values of both": "SELECT s.k, COUNT(DISTINCT s.i) AS a, COUNT(DISTINCT t.g, t.q) AS b, COUNT(*) AS n, "
    "SUM(DISTINCT t.y) AS y FROM s JOIN t ON s.k = t.k GROUP BY s.k",
    "two keys": "SELECT s.g, t.k, COUNT(*) AS n, MAX(t.id) AS m FROM s JOIN t ON s.k = t.k AND s.g = t.g "
    "GROUP BY s.g, t.k",
    "left": "SELECT s.k, COUNT(*) AS n, COUNT(t.id) AS c, SUM(t.i) AS si, SUM(s.b) AS sb, COUNT(DISTINCT t.g) AS d, "
    "COUNT(DISTINCT s.g) AS e, MIN(t.m) AS m FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k",
    "right": "SELECT t.k, COUNT(*) AS n, COUNT(s.id) AS c, AVG(s.i) AS a FROM s RIGHT JOIN t ON s.k = t.k GROUP BY t.k",
    "semi": "SELECT s.g, COUNT(*) AS n, SUM(s.i) AS si FROM s LEFT SEMI JOIN t ON s.g = t.g GROUP BY s.g",
    "conditions": "SELECT s.g, COUNT(*) AS n, COUNT(*) FILTER (WHERE t.q) AS f FROM s JOIN t ON s.g = t.g AND t.i > 0 "
    "WHERE s.q AND t.d < 9 GROUP BY s.g HAVING COUNT(*) > 3",
    "distinct values of doubles": "SELECT s.d, COUNT(DISTINCT s.i) AS c FROM s JOIN t ON s.d = t.d GROUP BY s.d",
    "doubles": "SELECT s.d, COUNT(*) AS n FROM s JOIN t ON s.d = t.d GROUP BY s.d",
}
"""Two streams, joined and aggregated by the join's key."""
BESIDE_STATIC = {
    "joined": "SELECT n.name, COUNT(*) AS c, COUNT(DISTINCT s.k) AS d FROM s JOIN n ON s.g = n.g GROUP BY n.name",
    "left joined": "SELECT n.name, SUM(s.i) AS x FROM s LEFT JOIN n ON s.g = n.g GROUP BY n.name",
    "filtered": "SELECT s.k, COUNT(*) AS c FROM s LEFT SEMI JOIN n ON s.g = n.g GROUP BY s.k",
    "anti": "SELECT s.k, COUNT(*) AS c FROM s LEFT ANTI JOIN n ON s.g = n.g GROUP BY s.k",
    "right joined": "SELECT n.name, SUM(s.i) AS x FROM n RIGHT JOIN s ON s.g = n.g GROUP BY n.name",
    "aggregated before": "SELECT s.k, SUM(m.c) AS c FROM s JOIN (SELECT g, COUNT(*) AS c FROM n GROUP BY g) m "
    "ON s.g = m.g GROUP BY s.k",
    "rows": "SELECT s.id, n.name FROM s JOIN n ON s.g = n.g",
}
"""A stream and a table that is none."""


def _cut(random: Random, directory: Path, number_of_rows: int = _ROWS, most: int = 3) -> list[Path]:
    """Rows in any order, in one file to `most`, of which some may be empty."""
    rows = facts(number_of_rows, 0.3, random.randint(0, 1 << 30))
    random.shuffle(rows)
    borders = sorted(random.sample(range(len(rows) + 1), random.randint(0, most - 1)))
    pieces = zip([0, *borders], [*borders, len(rows)], strict=True)
    return [
        write_rows(directory / f"{number}.parquet", FACTS, rows[start:end])
        for number, (start, end) in enumerate(pieces)
    ]


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, DistinctMethod.NATIVE) for name in QUERIES] + [(name, DistinctMethod.BITMAP) for name in BITMAPS],
)
def test_a_stream_gives_what_its_rows_give_in_one_piece(
    spark: SparkSession, tmp_path: Path, name: str, method: DistinctMethod
) -> None:
    random = Random(f"{SEED} {name} {method}")
    sql = BITMAPS[name] if method is DistinctMethod.BITMAP else QUERIES[name]
    files = _cut(random, tmp_path / "cuts")
    provider = random.choice(list(StateProvider))
    run = StreamRun(spark, tmp_path / "run", sql, {"s": Schema(FACTS.fields)}, provider=provider, method=method)
    assert (run.planned.plan.shape is Shape.BITMAP) == (method is DistinctMethod.BITMAP)
    story: list[str] = []
    for file in files:
        run.put("s", file)
        if random.random() < 0.5:
            continue
        catch_up_roughly(run, random, story)
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    expected = in_batch(spark, sql, {"s": files}, {"s": _DDL})
    assert difference(expected, run.rows) is None, (provider, len(files), story)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINED)
def test_two_streams_in_any_order_give_what_their_join_gives(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = JOINED[name]
    files = {table: _cut(random, tmp_path / table, rows) for table, rows in (("s", 60), ("t", 40))}
    provider = random.choice(list(StateProvider))
    schemas = {table: Schema(FACTS.fields) for table in files}
    run = StreamRun(spark, tmp_path / "run", sql, schemas, provider=provider)
    steps = [(table, file) for table, cut in files.items() for file in cut]
    random.shuffle(steps)
    story: list[str] = []
    for table, file in steps:
        run.put(table, file)
        if random.random() < 0.4:
            catch_up_roughly(run, random, story)
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    expected = in_batch(spark, sql, files, dict.fromkeys(files, _DDL))
    assert difference(expected, run.rows) is None, (provider, steps, story)


@pytest.mark.parametrize("name", BESIDE_STATIC)
def test_a_stream_beside_a_static_table(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = BESIDE_STATIC[name]
    files = _cut(random, tmp_path / "cuts", 80)
    names = [(-1, "x", 0.5), (1, "y", 1.5), (1, "z", None), (2, None, 0.0), (None, "w", 1.0)]
    static = tmp_path / "static" / "n"
    write_rows(static / "n.parquet", NAMES, names)
    run = StreamRun(spark, tmp_path / "run", sql, {"s": Schema(FACTS.fields)}, {"n": static.parent})
    for file in files:
        run.put("s", file)
    story: list[str] = []
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    expected = in_batch(spark, sql, {"s": files, "n": [static / "n.parquet"]}, {"s": _DDL})
    assert difference(expected, run.rows) is None, story
