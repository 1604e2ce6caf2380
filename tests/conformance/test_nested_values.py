"""Tests of DISTINCT, GROUP BY and ORDER BY on arrays and structures with all settings, against plain Spark.

By default, some combinations of settings run; with EVENKEEL_CONFORMANCE in the environment, all.

The values have NULL parts, empty arrays, NaN and both zeros at every depth. Before grouping, Spark normalizes NaN and
-0.0, also inside of arrays and structures. If equal values went to different tasks, they would be counted twice.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from service.contract.options import JobSettings
from service.results.files import as_arrow, as_csv, open_result
from service.results.json_values import json_rows
from tests.conformance import nasty_tables
from tests.conformance.combinations import Settings, all_together, alone
from tests.conformance.laboratory import Laboratory, interpreted, parquet, table_input
from tests.sql.case_files import texts_of
from workers.engine.spark.engine import Engine

pytestmark = pytest.mark.spark

ROWS, SEED = 90, 20_130_102
IS_WIDE = "EVENKEEL_CONFORMANCE" in os.environ
_CHOICES = 6

SCHEMA = pa.schema(
    [
        ("g", pa.int32()),
        ("k", pa.string()),
        ("v", pa.int64()),
        ("a", pa.list_(pa.int32())),
        ("x", pa.list_(pa.float64())),
        ("st", pa.struct([("p", pa.int32()), ("t", pa.string())])),
        ("sx", pa.struct([("x", pa.float64()), ("r", pa.float32())])),
        ("deep", pa.list_(pa.struct([("p", pa.int16()), ("tags", pa.list_(pa.string()))]))),
        ("low", pa.struct([("in", pa.struct([("xs", pa.list_(pa.float32()))])), ("ts", pa.timestamp("us", tz="UTC"))])),
        ("m", pa.map_(pa.string(), pa.int32())),
    ]
)

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "g": [1, 2, 3, None],
    "k": ["a", "b", "", None],
    "v": [-3, 0, 1, 2, 7, None],
    "a": [[1, 2], [2, 1], [1], [], [None], [1, None], None],
    "x": [[0.0], [-0.0], [math.nan], [1.5, -0.0], [1.5, 0.0], [None, math.nan], [], None],
    "st": [{"p": 1, "t": "x"}, {"p": 1, "t": None}, {"p": None, "t": None}, {"p": 2, "t": ""}, None],
    "sx": [{"x": 0.0, "r": -0.0}, {"x": -0.0, "r": 0.0}, {"x": math.nan, "r": None}, {"x": None, "r": math.nan}, None],
    "deep": [
        [{"p": 1, "tags": ["ä", None]}],
        [{"p": 1, "tags": []}, None],
        [{"p": 1, "tags": None}],
        [{"p": None, "tags": ["ä"]}, {"p": 1, "tags": ["b"]}],
        [],
        None,
    ],
    "low": [
        {"in": {"xs": [0.0, math.nan]}, "ts": NOON},
        {"in": {"xs": [-0.0, math.nan]}, "ts": NOON},
        {"in": {"xs": None}, "ts": None},
        {"in": None, "ts": NOON},
        None,
    ],
    "m": [[("a", 1)], [], None],
}

GROUPED, SHAPES = texts_of("broad/nested_values"), texts_of("broad/nested_shapes")


def rows(count: int) -> list[tuple[Any, ...]]:
    random = Random(SEED)
    return [tuple(random.choice(VALUES[name]) for name in SCHEMA.names) for _ in range(count)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables `n` with rows and `e` without."""
    directory = tmp_path_factory.mktemp("nested")
    for name, count in {"n": ROWS, "e": 0}.items():
        nasty_tables.write(directory, name, rows(count), SCHEMA)
    return directory


@pytest.fixture(scope="module")
def laboratory(spark: SparkSession, root: Path) -> Iterator[Laboratory]:
    with interpreted(spark):
        found = Laboratory(spark, root, {name: parquet(name) for name in ("n", "e")}, cached=True)
        yield found
        found.close()


def some(choices: list[Settings], text: str) -> list[Settings]:
    """Returns the defaults and some choices, different for each text."""
    return choices if IS_WIDE else [{}, *Random(text).sample(choices, min(_CHOICES, len(choices)))]


@pytest.mark.parametrize("text", GROUPED)
def test_every_combination_of_settings_has_sparks_rows(laboratory: Laboratory, text: str) -> None:
    tally = laboratory.check(text, some(all_together(laboratory.choices(text)), text))
    assert tally.wrong == []
    assert tally.unheard == []


@pytest.mark.parametrize("text", SHAPES)
def test_every_single_setting_has_sparks_rows(laboratory: Laboratory, text: str) -> None:
    tally = laboratory.check(text, some(alone(laboratory.choices(text)), text))
    assert tally.wrong == []
    assert tally.unheard == []


def test_tables_have_equal_values_with_different_bytes(spark: SparkSession, laboratory: Laboratory) -> None:
    """Otherwise, the queries would prove nothing: zeros of both signs are one value with different bytes."""
    assert not laboratory.fails("SELECT x, sx FROM n")
    calls = (f"COUNT(DISTINCT {value})" for name in ("x", "sx") for value in (name, f"CAST({name} AS STRING)"))
    assert tuple(spark.sql(f"SELECT {', '.join(calls)} FROM n").collect()[0]) == (5, 7, 3, 4)


def test_split_supports_arrays_without_fractions(laboratory: Laboratory) -> None:
    forced = [{"distinct_method": "split"}]
    for name, fires in {"a": True, "st": True, "deep": True, "x": False, "sx": False, "low": False}.items():
        fired = laboratory.plans(f"SELECT g, COUNT(DISTINCT {name}) FROM n GROUP BY g", forced).fired
        assert ("split_distinct_aggregate" in fired) is fires


def test_arrays_are_group_keys_below_joins(laboratory: Laboratory) -> None:
    text = "SELECT t.a, t.x, COUNT(*), SUM(u.v) FROM n t JOIN n u ON t.g = u.g GROUP BY t.a, t.x"
    tally = laboratory.check(text, [{"eager_aggregation": "true"}, {"eager_aggregation": "false"}])
    assert tally.wrong == []
    assert "eager_aggregation" in tally.fired


def test_nested_keys_in_every_result_format(spark: SparkSession, laboratory: Laboratory, root: Path) -> None:
    """The query runs as on a worker, and the API serves its result."""
    text = "SELECT low, a, COUNT(DISTINCT st) AS n FROM n WHERE g = 1 AND v > 1 GROUP BY low, a"
    expected = {repr_of(row) for row in spark.sql(text).collect()}
    engine, tables = Engine(spark, slots=2), {"n": table_input(root, "n", parquet("n"))}
    planned = engine.plan(laboratory.compile({"sql": text}), tables, JobSettings())
    assert engine.execute(planned, root / "result").rows == len(expected)
    result = open_result(root / "result")
    assert [column.type for column in result.columns] == [
        "STRUCT<in: STRUCT<xs: ARRAY<FLOAT>>, ts: TIMESTAMP>",
        "ARRAY<INT>",
        "BIGINT",
    ]
    given = json_rows(result.page(0, ROWS))
    assert {json.dumps([low, a, n]) for low, a, n in given} == expected
    lines = list(csv.reader(io.StringIO(b"".join(as_csv(result)).decode())))
    assert lines[0] == ["low", "a", "n"]
    assert [[json.loads(cell) if cell else None for cell in line] for line in lines[1:]] == given
    read = pa.ipc.open_stream(b"".join(as_arrow(result))).read_all()
    assert json_rows(read) == given


def repr_of(row: Any) -> str:
    """Returns a Spark row as the JSON of the API."""
    low, a, n = row
    if low is not None:
        inner = low["in"]
        when = None if low["ts"] is None else low["ts"].astimezone(UTC).isoformat().replace("+00:00", "Z")
        xs = None if inner is None or inner["xs"] is None else [number(x) for x in inner["xs"]]
        low = {"in": None if inner is None else {"xs": xs}, "ts": when}
    return json.dumps([low, a, n])


def number(x: float) -> float | str:
    return "NaN" if math.isnan(x) else x + 0.0
