"""Tests of calls with OVER whose hot partitions are computed in parts, against plain Spark, for random rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.conformance import nasty_tables
from tests.conformance.laboratory import Laboratory, interpreted, parquet
from tests.support.counts import count

pytestmark = pytest.mark.spark

FORCED = {"skewed_windows": "true"}
PARTITIONS = ("k", "g", "k, g", "q", "")
ORDERS = (
    "id",
    "id DESC",
    "id DESC, id",
    "ts, id",
    "ts DESC NULLS FIRST, id",
    "d NULLS LAST, id DESC",
    "s, k DESC, id",
    "m DESC, id",
)
TIES = ("ts", "d DESC NULLS FIRST", "s NULLS LAST", "s DESC, q", "k", "m", "y")
FRAMES = ("", "ROWS UNBOUNDED PRECEDING", "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW")
RUNNING = (
    "COUNT(*)",
    "COUNT(b)",
    "SUM(s)",
    "SUM(b)",
    "SUM(y) FILTER (WHERE q)",
    "SUM(m)",
    "AVG(s)",
    "AVG(m)",
    "MIN(k)",
    "MAX(x)",
    "MIN(ts)",
    "MAX(w)",
    "SUM(s + y)",
    "MIN(s) FILTER (WHERE g > 1)",
)
WHOLE = ("SUM(s)", "AVG(m)", "COUNT(*)", "MAX(k)", "SUM(b) FILTER (WHERE q)", "MIN(x)", "VAR_POP(y)", "AVG(y)")
OFFSETS = (
    "lag(s)",
    "lead(k, 2)",
    "lag(m, 3, 0.5)",
    "lead(id, 7, -id)",
    "lag(d, -1)",
    "lead(s + y, 1, 0)",
    "lag(x)",
    "lag(s, 2) IGNORE NULLS",
)
OTHERS = ("ntile(3) OVER ({} ORDER BY id)", "SUM(x) OVER ({} ORDER BY id)")
GROUPED = (
    ("k, id", "SUM(SUM(s)) OVER (PARTITION BY k ORDER BY id)"),
    ("g, id", "lag(SUM(s), 2) OVER (PARTITION BY g ORDER BY id)"),
    ("k, s, ts", "COUNT(*) OVER (PARTITION BY k ORDER BY s DESC, ts)"),
    ("k, ts", "dense_rank() OVER (PARTITION BY k ORDER BY ts, SUM(s))"),
    ("k, ts", "MAX(COUNT(*)) OVER (ORDER BY ts)"),
    ("k, ts", "SUM(COUNT(b)) OVER (PARTITION BY k)"),
)
"""The keys of GROUP BY, and a call over the groups."""


@st.composite
def calls(draw: st.DrawFn) -> str:
    """Draws a call with OVER whose value is the same for every execution."""
    key = draw(st.sampled_from(PARTITIONS))
    by = f"PARTITION BY {key}" if key else ""
    kinds = ["number", "rank", "running", "running", "offset", "offset", "peers", "whole", "whole", "other"]
    kind = draw(st.sampled_from(kinds))
    if kind == "number":
        return f"row_number() OVER ({by} ORDER BY {draw(st.sampled_from(ORDERS))})"
    if kind == "rank":
        rank = draw(st.sampled_from(["rank", "dense_rank"]))
        return f"{rank}() OVER ({by} ORDER BY {draw(st.sampled_from(TIES + ORDERS))})"
    if kind == "offset":
        return f"{draw(st.sampled_from(OFFSETS))} OVER ({by} ORDER BY {draw(st.sampled_from(ORDERS))})"
    if kind == "running":
        order, frame = draw(st.sampled_from(ORDERS)), draw(st.sampled_from(FRAMES))
        return f"{draw(st.sampled_from(RUNNING))} OVER ({by} ORDER BY {order} {frame})"
    if kind == "peers":
        return f"{draw(st.sampled_from(RUNNING))} OVER ({by} ORDER BY {draw(st.sampled_from(TIES))})"
    if kind == "other":
        return draw(st.sampled_from(OTHERS)).format(by)
    return f"{draw(st.sampled_from(WHOLE))} OVER ({by})"


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Draws queries with several windows, some over an aggregate, and some below one."""
    if not draw(st.integers(0, 4)):
        keys, call = draw(st.sampled_from(GROUPED))
        return f"SELECT {keys}, COUNT(*) AS n, {call} AS c FROM t GROUP BY {keys}"
    drawn = draw(st.lists(calls(), min_size=1, max_size=4))
    items = [f"{call} AS c{number}" for number, call in enumerate(drawn)]
    rows = f"SELECT id, {', '.join(items)} FROM t{draw(st.sampled_from(['', ' WHERE s > -3']))}"
    if draw(st.integers(0, 4)):
        return rows
    return f"SELECT c0, COUNT(*) AS n, MAX(id) AS last FROM ({rows}) AS w GROUP BY c0"


@settings(max_examples=count(sample=8, full=200))
@given(
    texts=st.lists(queries(), min_size=3, max_size=6),
    rows=st.sampled_from([0, 1, 12, 60]),
    hot=st.sampled_from([0.0, 0.7, 0.95, 1.0]),
    seed=st.integers(0, 1000),
)
def test_parts_have_sparks_rows(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, texts: list[str], rows: int, hot: float, seed: int
) -> None:
    root = tmp_path_factory.mktemp("windows")
    nasty_tables.write(root, "t", nasty_tables.facts(rows, hot, seed), nasty_tables.FACTS)
    with interpreted(spark):
        laboratory = Laboratory(spark, root, {"t": parquet("t")}, cached=True, thorough=True)
        try:
            for text in texts:
                tally = laboratory.check(text, [FORCED, {}])
                assert tally.wrong == [], text
                assert tally.unheard == [], text
        finally:
            laboratory.close()


@pytest.fixture(scope="module")
def hot_table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    root = tmp_path_factory.mktemp("hot")
    nasty_tables.write(root, "t", nasty_tables.facts(120, 0.9, 7), nasty_tables.FACTS)
    with interpreted(spark):
        found = Laboratory(spark, root, {"t": parquet("t")}, cached=True, thorough=True)
        yield found
        found.close()


@pytest.mark.parametrize("call", RUNNING)
def test_every_running_call_is_split(hot_table: Laboratory, call: str) -> None:
    text = f"SELECT id, {call} OVER (PARTITION BY k ORDER BY d DESC, id) AS c FROM t"
    tally = hot_table.check(text, [FORCED])
    assert tally.wrong == []
    assert tally.fired == {"skewed_windows"}


@pytest.mark.parametrize("order", ["d DESC, id", "s, id"])
def test_every_lag_and_lead_is_split(hot_table: Laboratory, order: str) -> None:
    """With 120 rows in 7 ranges or more, some ranges have fewer rows than a call reads ahead."""
    split = [call for call in OFFSETS if "IGNORE" not in call]
    calls = [*split, "lead(b, 40)", "dense_rank()", "SUM(y)"]
    items = ", ".join(f"{call} OVER (PARTITION BY k ORDER BY {order}) AS c{place}" for place, call in enumerate(calls))
    tally = hot_table.check(f"SELECT id, {items} FROM t", [FORCED])
    assert tally.wrong == []
    assert tally.fired == {"skewed_windows"}


@pytest.mark.parametrize(("keys", "call"), GROUPED)
def test_every_call_over_an_aggregate_is_split(hot_table: Laboratory, keys: str, call: str) -> None:
    tally = hot_table.check(f"SELECT {keys}, COUNT(*) AS n, {call} AS c FROM t GROUP BY {keys}", [FORCED])
    assert tally.wrong == []
    assert "skewed_windows" in tally.fired


@pytest.mark.parametrize("call", ["lag(b)", "lag(b, 2)"])
def test_ranges_and_their_neighbours_have_one_order(hot_table: Laboratory, call: str) -> None:
    """Rows with equal keys have any order, but each is before exactly one other row. Only the last rows are ordered."""
    window = "PARTITION BY k ORDER BY s NULLS FIRST, IF(s = 3, id, 0)"
    rows = f"SELECT {call} OVER ({window}) AS c FROM t WHERE k = 'a'"
    tally = hot_table.check(f"SELECT c, COUNT(*) AS n FROM ({rows}) AS w GROUP BY c", [FORCED])
    assert tally.wrong == []
    assert "skewed_windows" in tally.fired


@pytest.mark.parametrize("by", ["", "PARTITION BY k", "PARTITION BY k, g"])
def test_every_aggregate_of_a_whole_partition_is_joined_back(hot_table: Laboratory, by: str) -> None:
    items = ", ".join(f"{call} OVER ({by}) AS c{number}" for number, call in enumerate(WHOLE))
    tally = hot_table.check(f"SELECT id, {items} FROM t", [FORCED])
    assert tally.wrong == []
    assert "skewed_windows" in tally.fired
