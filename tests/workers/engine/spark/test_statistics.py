"""Statistics tell sizes, distinct keys, NULLs and heavy hitters, near enough to the truth, and never fail a job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from service.spec.job import TableFormat
from service.spec.types import BIGINT, STRING, Field
from tests.support.tables import on_disk
from workers.engine.plan.nodes import Scan
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics import HOT_KEYS, gather_statistics

Tables = Callable[..., TableInput]
Scans = Callable[..., Scan]

ROWS = 200_000


def skewed() -> pa.Table:
    """Half of the rows on user 7, the others unique; a category of twenty; a tenth of the cities NULL."""
    return pa.table(
        {
            "uid": [7 if number % 2 else number + 1000 for number in range(ROWS)],
            "category": [number * 7919 % 20 for number in range(ROWS)],
            "city": [None if number % 10 == 0 else f"c{number % 9}" for number in range(ROWS)],
        }
    )


def test_sketches_of_a_skewed_table(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(skewed(), files=4, group_rows=10_000)
    keys = [("o.uid",), ("o.category",), ("o.city",), ("o.uid", "o.category")]
    statistics = gather_statistics(keys, [scan_of(table, "o")], {"t": table}, slots=2)
    size = statistics.tables["o"]
    assert (size.files, size.rows, size.rows_are_exact, size.bytes) == (4, ROWS, True, table.files.bytes)
    assert statistics.slots == 2
    assert set(statistics.keys) == set(keys)
    uid = statistics.keys[("o.uid",)]
    assert uid.hot_keys[0].value == "7"
    assert uid.hot_keys[0].share == pytest.approx(0.5, abs=0.01)
    assert uid.hot_keys[0].estimated_rows == pytest.approx(ROWS / 2, rel=0.02)
    assert len(uid.hot_keys) == 1
    assert uid.distinct_keys == pytest.approx(ROWS / 2, rel=0.05)
    assert statistics.keys[("o.category",)].distinct_keys == 20
    assert len(statistics.keys[("o.category",)].hot_keys) == HOT_KEYS
    city = statistics.keys[("o.city",)]
    assert city.null_share == pytest.approx(0.1, abs=0.01)
    assert "NULL" in {key.value for key in city.hot_keys}


def test_null_and_the_text_null_are_two_keys(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [None, "NULL", "x"] * 100, "b": [1] * 300}))
    known = gather_statistics([("t.a",), ("t.b", "t.a")], [scan_of(table)], {"t": table}, slots=1).keys
    assert [(key.value, key.is_null) for key in known[("t.a",)].hot_keys] == [
        ("NULL", False),
        ("NULL", True),
        ("x", False),
    ]
    assert [key.value for key in known[("t.b", "t.a")].hot_keys if key.is_null] == ["1, NULL"]


def test_a_file_sorted_by_its_key_and_read_in_part_is_not_representative(parquet_table: Tables, scan_of: Scans) -> None:
    # The hot key is behind what is read of a group of 3 million rows.
    rows = pa.array(range(3_000_000))
    uid = pc.if_else(pc.less(rows, 2_100_000), rows, pa.scalar(9_999_999))
    table = parquet_table(pa.table({"uid": uid, "other": pc.bit_wise_and(rows, 1023)}), group_rows=3_000_000)
    keys = [("t.uid",), ("t.other", "t.uid"), ("t.other",)]
    known = gather_statistics(keys, [scan_of(table)], {"t": table}, slots=1).keys
    assert [known[key].representative for key in keys] == [False, False, True]


def test_a_table_under_two_aliases(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 1, 2], "b": [1, 2, 3]}))
    scans = [scan_of(table, "x", "a"), scan_of(table, "y", "b")]
    statistics = gather_statistics([("x.a",), ("y.b",), ("y.a",)], scans, {"t": table}, slots=1)
    assert set(statistics.tables) == {"x", "y"}
    assert {key: known.distinct_keys for key, known in statistics.keys.items()} == {("x.a",): 2, ("y.b",): 3}
    assert statistics.keys[("y.b",)].alias == "y"


def test_values_as_text(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(
        pa.table(
            {
                "zero": [0.0, -0.0] * 50,
                "day": [date(2013, 1, 2)] * 100,
                "flag": [True] * 100,
                "long": ["x" * 500] * 100,
            }
        )
    )
    keys = [("t.zero",), ("t.day", "t.flag"), ("t.long",)]
    known = gather_statistics(keys, [scan_of(table)], {"t": table}, slots=1).keys
    assert [key.value for key in known[("t.zero",)].hot_keys] == ["0.0"]
    assert [key.value for key in known[("t.day", "t.flag")].hot_keys] == ["2013-01-02, true"]
    assert len(known[("t.long",)].hot_keys[0].value) == 120


def test_a_rare_value_is_not_hot(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1] * 4 + list(range(10, 106))}))
    assert gather_statistics([("t.a",)], [scan_of(table)], {"t": table}, slots=1).keys[("t.a",)].hot_keys == ()


@pytest.mark.parametrize("format_", [TableFormat.CSV, TableFormat.JSON])
def test_text_tables(text_table: Tables, scan_of: Scans, format_: TableFormat) -> None:
    lines = [(7 if number % 2 else number, f"n{number}") for number in range(2000)]
    if format_ is TableFormat.CSV:
        text = "".join(f"{uid},{name}\n" for uid, name in lines)
    else:
        text = "".join(f'{{"uid": {uid}, "name": "{name}"}}\n' for uid, name in lines)
    table = text_table(format_, [text], (Field("uid", BIGINT), Field("name", STRING)))
    statistics = gather_statistics([("u.uid",)], [scan_of(table, "u")], {"t": table}, slots=1)
    assert statistics.tables["u"].rows == pytest.approx(2000, rel=0.01)
    assert not statistics.tables["u"].rows_are_exact
    hottest = statistics.keys[("u.uid",)].hot_keys[0]
    assert hottest.value == "7"
    assert hottest.share == pytest.approx(0.5, abs=0.01)


def test_broken_files_cost_only_the_sketch(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [1, 2]}))
    on_disk(table.files)[0].write_bytes(b"PAR1")
    statistics = gather_statistics([("t.a",)], [scan_of(table)], {"t": table}, slots=1)
    assert statistics.keys == {}
    assert not statistics.tables["t"].rows_are_exact
    on_disk(table.files)[0].unlink()
    assert gather_statistics([("t.a",)], [scan_of(table)], {"t": table}, slots=1).keys == {}


def test_an_empty_table(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": pa.array([], pa.int64())}))
    statistics = gather_statistics([("t.a",)], [scan_of(table)], {"t": table}, slots=1)
    assert (statistics.tables["t"].rows, statistics.tables["t"].rows_are_exact) == (0, True)
    assert statistics.keys == {}


def test_the_same_files_give_the_same_statistics(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(skewed(), files=4)
    first, second = (
        gather_statistics([("o.uid",), ("o.city",)], [scan_of(table, "o")], {"t": table}, slots=2) for _ in range(2)
    )
    assert (first.tables, first.keys) == (second.tables, second.keys)
