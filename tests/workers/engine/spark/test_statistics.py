"""Statistics have sizes, distinct keys, NULLs and hot keys close to the real ones, and never fail a job."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from service.config.data import Location
from service.contract.read_options import TableFormat
from service.data.file_io import UriFile
from service.data.roots import Store
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, STRING, Field, Schema
from tests.support.scalars import scalar
from tests.support.tables import on_disk
from workers.engine.plan.nodes import Scan
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.spark.table_statistics import Texts, gather_statistics, sizes_only
from workers.engine.statistics.hot_keys import HOT_KEYS
from workers.engine.statistics.model import KeySketch, Statistics

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


def test_nested_keys_have_no_sketch(parquet_table: Tables, scan_of: Scans, caplog: pytest.LogCaptureFixture) -> None:
    table = parquet_table(pa.table({"uid": [1, 1], "tags": [["a"], []]}))
    known = gather_statistics([("o.uid",), ("o.tags",), ("o.uid", "o.tags")], [scan_of(table, "o")], {"t": table}, 2)
    assert set(known.keys) == {("o.uid",)}
    assert caplog.records == []


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


def test_few_rows_of_a_large_table_are_enough_for_keys_with_few_values(parquet_table: Tables, scan_of: Scans) -> None:
    rows = 2_400_000
    numbers = pa.array(range(rows))
    texts = pa.array([f"t{number}" for number in range(50_000)]).take(pc.bit_wise_and(numbers, 32_767))
    few = pa.array(range(7)).take(pa.array([number % 7 for number in range(rows)]))
    table = parquet_table(pa.table({"few": few, "many": numbers, "texts": texts}), files=4, group_rows=100_000)

    def sketch(column: str) -> KeySketch:
        return gather_statistics([(f"o.{column}",)], [scan_of(table, "o")], {"t": table}, 2).keys[f"o.{column}",]

    assert (sketch("few").distinct_keys, len(sketch("few").hot_keys)) == (7, 7)
    assert sketch("few").sampled_rows < 80_000
    assert sketch("many").sampled_rows > 120_000
    assert sketch("texts").sampled_rows > 120_000
    assert sketch("texts").distinct_keys == pytest.approx(32_768, rel=0.1)


def test_few_rows_are_not_enough_for_values_of_one_part_of_a_table(parquet_table: Tables, scan_of: Scans) -> None:
    rows, group_rows = 2_400_000, 3_000
    place = np.arange(rows)
    values = pa.array([f"v{number}" for number in range(rows // group_rows * 5)])
    keys = values.take(pa.array(place // group_rows * 5 + place % 5))
    table = parquet_table(pa.table({"key": keys}), files=4, group_rows=group_rows)
    sketch = gather_statistics([("o.key",)], [scan_of(table, "o")], {"t": table}, 2).keys["o.key",]
    assert sketch.sampled_rows > 120_000


def test_null_and_the_text_null_are_two_keys(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": [None, "NULL", "x"] * 100, "b": [1] * 300}))
    known = gather_statistics([("t.a",), ("t.b", "t.a")], [scan_of(table)], {"t": table}, slots=1).keys
    assert [(key.value, key.is_null) for key in known[("t.a",)].hot_keys] == [
        ("NULL", False),
        ("NULL", True),
        ("x", False),
    ]
    assert [key.value for key in known[("t.b", "t.a")].hot_keys if key.is_null] == ["1, NULL"]


@pytest.mark.not_quick
def test_a_file_sorted_by_its_key_and_read_in_part_is_not_representative(parquet_table: Tables, scan_of: Scans) -> None:
    # The hot key is after the rows that are read of a group of 3 million rows.
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


def nan(bits: int) -> float:
    found: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return found


def hot_rows(statistics: Statistics, column: str) -> dict[str, int]:
    return {hot.value: hot.estimated_rows for hot in statistics.keys[(column,)].hot_keys}


def test_zeros_and_nan_are_grouped_as_in_spark(parquet_table: Tables, scan_of: Scans) -> None:
    values = [0.0, -0.0, nan(0x7FF8000000000000), nan(0xFFF8000000000001), None, 1.5] * 100
    table = parquet_table(pa.table({"a": pa.array(values, pa.float64())}))
    known = gather_statistics([("t.a",)], [scan_of(table)], {"t": table}, slots=1)
    assert hot_rows(known, "t.a") == {"0.0": 200, "nan": 200, "NULL": 100, "1.5": 100}
    assert known.keys[("t.a",)].distinct_keys == 4


def test_texts_of_one_number_are_one_key(text_table: Tables, scan_of: Scans) -> None:
    lines = "0.0,x\n-0.0,x\n0,x\nNaN,x\n,\n1.50,x\n1.5,x\n" * 50
    table = text_table(TableFormat.CSV, [lines], [Field("a", DOUBLE), Field("b", STRING)])
    known = gather_statistics([("t.a",)], [scan_of(table)], {"t": table}, slots=1)
    assert hot_rows(known, "t.a") == {"0.0": 150, "nan": 50, "NULL": 50, "1.5": 100}


def test_a_long_header_alone_is_an_empty_table(text_table: Tables, scan_of: Scans) -> None:
    names = [f"a_column_with_a_long_name_{number}" for number in range(40)]
    fields = [Field(name, BIGINT) for name in names]
    table = text_table(TableFormat.CSV, [",".join(names) + "\n"], fields, header=True)
    known = gather_statistics([(f"t.{names[0]}",)], [scan_of(table)], {"t": table}, slots=1)
    assert (known.tables["t"].rows, known.tables["t"].rows_are_exact) == (0, True)


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


def test_views_of_strings_are_strings(parquet_table: Tables, scan_of: Scans) -> None:
    views = pa.array(["a", "b", "a", None] * 50_000).cast(pa.string_view())
    table = parquet_table(pa.table({"s": views}), files=2)
    table = replace(table, schema=Schema((Field("s", STRING),)))
    condition = scalar("`t.s` LIKE 'a%'", BOOLEAN)
    known = gather_statistics([("t.s",)], [scan_of(table)], {"t": table}, slots=1, conditions=[condition])
    assert known.warnings == ()
    assert known.keys[("t.s",)].hot_keys[0].value == "a"
    assert known.selectivities == {condition.sql: pytest.approx(0.5, abs=0.02)}


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
    assert (statistics.tables["u"].rows, statistics.tables["u"].rows_are_exact) == (2000, True)
    hottest = statistics.keys[("u.uid",)].hot_keys[0]
    assert hottest.value == "7"
    assert hottest.share == pytest.approx(0.5, abs=0.01)


def test_broken_files_have_no_sketch(parquet_table: Tables, scan_of: Scans) -> None:
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


def test_hot_keys_come_with_literals_of_the_declared_types(parquet_table: Tables, scan_of: Scans) -> None:
    rows = {"n": [7, None] * 100, "t": ["it's", "b"] * 100, "x": [0.5] * 200}
    table = parquet_table(pa.table(rows))
    known = gather_statistics([("t.n", "t.t"), ("t.t",), ("t.x",)], [scan_of(table)], {"t": table}, slots=1).keys

    def texts(key: tuple[str, ...]) -> list[list[str] | None]:
        return [None if found is None else [part.sql for part in found] for found in known[key].literals]

    assert texts(("t.n", "t.t")) == [["7L", "'it\\'s'"], ["NULL", "'b'"]]
    assert texts(("t.t",)) == [["'b'"], ["'it\\'s'"]]
    assert texts(("t.x",)) == [None]


def test_cached_statistics_are_not_read_again(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(skewed(), files=4)
    cache = StatisticsCache()
    scan, condition = scan_of(table, "o"), scalar("`o.category` < 5 AND `o.city` = 'c1'", BOOLEAN)

    def gathered(*keys: tuple[str, ...], alias: Scan = scan, of: tuple[Scalar, ...] = ()) -> Statistics:
        return gather_statistics(keys, [alias], {"t": table}, slots=2, conditions=of, cache=cache)

    first = gathered(("o.uid",))
    assert not first.tables["o"].cached
    again = gathered(("o.uid",))
    assert again.tables["o"].cached
    assert (again.keys, again.ranges) == (first.keys, first.ranges)
    # Another name of the table, and fewer columns; then keys and conditions that nobody has asked for.
    assert gathered(("p.uid",), alias=scan_of(table, "p", "uid")).keys[("p.uid",)].columns == ("p.uid",)
    more = gathered(("o.uid",), ("o.city",), of=(condition,))
    assert not more.tables["o"].cached
    third = gathered(("o.uid",), ("o.city",), of=(condition,))
    assert third.tables["o"].cached
    assert (third.keys, third.selectivities) == (more.keys, more.selectivities)
    on_disk(table.files)[0].write_bytes(on_disk(table.files)[1].read_bytes())
    assert not gathered(("o.uid",)).tables["o"].cached


def test_texts_are_measured_once_where_a_side_may_be_hashed(
    parquet_table: Tables, text_table: Tables, scan_of: Scans
) -> None:
    table, cache = parquet_table(skewed(), files=4), StatisticsCache()
    csv = text_table(TableFormat.CSV, ["ab\n" * 1000], (Field("s", STRING),), name="c")

    def gathered(rows: int) -> Statistics:
        texts = Texts({"o.city", "c.s"}, rows)
        scans = [scan_of(table, "o"), scan_of(csv, "c")]
        return gather_statistics([], scans, {"t": table, "c": csv}, slots=1, texts=texts, cache=cache)

    # Of a table with more rows nothing is read for it, nor of a text file, whose rows are not known.
    assert gathered(ROWS - 1).widths == {}
    assert gathered(ROWS - 1).tables["o"].cached
    first, again = gathered(ROWS), gathered(ROWS)
    assert (first.tables["o"].cached, again.tables["o"].cached) == (False, True)
    assert first.widths == again.widths == pytest.approx({"o.city": 1.5 * 2 * 0.9}, rel=0.01)


def test_shares_of_conditions(parquet_table: Tables, text_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(skewed(), files=4, group_rows=10_000)
    csv = text_table(
        TableFormat.CSV, ["".join(f"{number}\n" for number in range(1000))], (Field("n", BIGINT),), name="c"
    )
    scans = [scan_of(table, "o"), scan_of(csv, "c")]
    shares = {
        "`o.category` < 5": 0.25,
        # Of the odd numbers, which have user 7, one in five has such a category.
        "`o.uid` = 7 AND `o.category` < 5": 0.1,
        "`o.city` IS NULL": 0.1,
        "`o.category` < 5 AND `c.n` >= 100": 0.225,
        "`o.category` < 5 AND `o.uid` < `c.n`": 0.25 / 3,
    }
    conditions = [scalar(text, BOOLEAN) for text in (*shares, "`o.uid` < `c.n`", "upper(`o.city`) = 'C1'")]
    known = gather_statistics([], scans, {"t": table, "c": csv}, slots=2, conditions=conditions)
    assert known.selectivities == pytest.approx(shares, rel=0.05)


@pytest.mark.not_quick
def test_a_condition_on_a_column_cut_short_is_unknown(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"uid": pa.array(range(3_000_000))}), group_rows=3_000_000)
    condition = scalar("`t.uid` > 2000000", BOOLEAN)
    known = gather_statistics([], [scan_of(table)], {"t": table}, slots=1, conditions=[condition])
    assert known.selectivities == {}


def test_a_wide_column_is_not_read_for_a_condition(parquet_table: Tables, scan_of: Scans) -> None:
    texts = [f"{number}{'x' * 200}" for number in range(1000)]
    table = parquet_table(pa.table({"long": texts, "n": list(range(1000))}))
    conditions = [scalar("`t.long` LIKE '1%'", BOOLEAN), scalar("`t.n` < 100", BOOLEAN)]
    scan = scan_of(table)
    known = gather_statistics([], [scan], {"t": table}, slots=1, conditions=conditions)
    assert known.selectivities == {"`t.n` < 100": 0.1}
    known = gather_statistics([("t.long",)], [scan], {"t": table}, slots=1, conditions=conditions)
    assert known.selectivities == pytest.approx({"`t.long` LIKE '1%'": 0.111, "`t.n` < 100": 0.1})


def test_unreadable_files_are_reported_and_not_cached(
    parquet_table: Tables, text_table: Tables, scan_of: Scans
) -> None:
    cache = StatisticsCache()
    table = parquet_table(skewed(), files=4)
    broken, gone = on_disk(table.files)[:2]
    sound = broken.read_bytes()
    broken.write_bytes(b"PAR1")

    def warnings() -> tuple[tuple[str | None, str], ...]:
        known = gather_statistics([("o.uid",)], [scan_of(table, "o")], {"t": table}, slots=1, cache=cache)
        assert known.tables["o"].rows == pytest.approx(ROWS, rel=0.4)
        assert known.keys[("o.uid",)].hot_keys[0].value == "7"
        return known.warnings

    warning = "The footer of part-000.parquet cannot be read: its content does not match its format."
    assert warnings() == (("t", warning),)
    gone.rename(gone.with_suffix(".away"))
    both = "The footer of part-000.parquet and of 1 more cannot be read: its content does not match its format."
    assert warnings() == (("t", both),)
    gone.with_suffix(".away").rename(gone)
    broken.write_bytes(sound)
    assert warnings() == ()
    csv = text_table(TableFormat.CSV, ["1\n"], (Field("n", BIGINT),), name="c")
    on_disk(csv.files)[0].unlink()
    known = gather_statistics([("c.n",)], [scan_of(csv, "c")], {"c": csv}, slots=1)
    assert known.warnings == (("c", "A sample of part-000.csv cannot be read: No such file or directory."),)


def test_unexpected_errors_fail_no_job(parquet_table: Tables, scan_of: Scans) -> None:
    def connect() -> NoReturn:
        raise LookupError("nobody thought of this")

    table = parquet_table(pa.table({"a": [1, 2]}))
    file = UriFile("s3a://b/a", "a", 500, Store(Location("s3a", "b", ()), connect))
    lost = replace(table, files=replace(table.files, files=(file,), bytes=500))
    known = gather_statistics([("t.a",)], [scan_of(table)], {"t": lost}, slots=1)
    assert (known.tables["t"].rows, known.tables["t"].rows_are_exact, known.keys) == (5, False, {})
    assert known.warnings == (("t", "It could not be read before the run (LookupError)."),)


def test_sizes_alone_open_no_file(parquet_table: Tables, scan_of: Scans) -> None:
    table = parquet_table(pa.table({"a": list(range(1000))}))
    on_disk(table.files)[0].unlink()
    known = sizes_only([scan_of(table, "x"), scan_of(table, "y")], {"t": table}, slots=3, warning="Because.")
    guessed = (table.files.bytes, table.files.bytes // 100)
    assert [(size.bytes, size.rows) for size in known.tables.values()] == [guessed, guessed]
    assert (known.keys, known.slots, known.warnings) == ({}, 3, ((None, "Because."),))
