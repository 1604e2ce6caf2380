"""Samples are bounded, spread over files and rows, and the same every time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from service.spec.job import TableFormat
from service.spec.types import BIGINT, STRING, Field
from tests.support.tables import on_disk
from workers.engine.spark.sampling import MAX_FILES, MAX_ROWS_PER_FILE, sample_parquet, sample_text, spread
from workers.engine.spark.sources import TableInput

Tables = Callable[..., TableInput]


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [(3, 8, [0, 1, 2]), (10, 4, [0, 3, 6, 9]), (100, 1, [50]), (0, 4, []), (9, 8, [0, 1, 2, 3, 5, 6, 7, 8])],
)
def test_spread(size: int, count: int, expected: list[int]) -> None:
    assert spread(range(size), count) == expected


@pytest.mark.parametrize(("files", "group_rows"), [(1, 1 << 20), (1, 20_000), (8, 5_000), (20, 1 << 20)])
def test_a_parquet_sample_covers_the_table(parquet_table: Tables, files: int, group_rows: int) -> None:
    rows = 400_000
    table = parquet_table(pa.table({"a": range(rows), "b": ["x"] * rows}), files=files, group_rows=group_rows)
    sample = sample_parquet(table.files.files, table.files.bytes, ["a"])
    assert (sample.rows, sample.rows_are_exact) == (rows, True)
    assert sample.table is not None
    assert sample.table.column_names == ["a"]
    assert 40_000 <= sample.table.num_rows <= MAX_FILES * MAX_ROWS_PER_FILE
    if files <= MAX_FILES:
        kept = sorted(sample.table.column("a").to_pylist())
        assert len(set(kept)) == len(kept)
        assert max(right - left for left, right in pairwise(kept)) < rows / 4
        assert kept[0] < rows / 100
        assert kept[-1] > rows * 0.8


def test_a_small_table_is_its_own_sample(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(1000)}), files=3, group_rows=10)
    sample = sample_parquet(table.files.files, table.files.bytes, ["a"])
    assert sample.table is not None
    assert sample.table.num_rows == 1000


def test_the_same_files_give_the_same_sample(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(300_000)}), files=3)
    first, second = (sample_parquet(table.files.files, table.files.bytes, ["a"]) for _ in range(2))
    assert first == second


def test_rows_of_many_files_are_extrapolated(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(20_000)}), files=100)
    sample = sample_parquet(table.files.files, table.files.bytes, [])
    assert not sample.rows_are_exact
    assert sample.rows == pytest.approx(20_000, rel=0.02)
    assert sample.table is None


def test_many_small_files_are_read_until_there_are_rows_enough(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(32_000)}), files=40)
    sample = sample_parquet(table.files.files, table.files.bytes, ["a"])
    assert sample.table is not None
    assert sample.table.num_rows == 32_000


HALF = 1_500_000
RISING = pa.array(range(2 * HALF))


@pytest.mark.parametrize(
    ("values", "cut"),
    [
        (RISING, True),
        (pc.subtract(pa.scalar(0), RISING), True),
        (pc.max_element_wise(RISING, pa.scalar(2 * HALF - 100)), True),
        (pa.array([None] * HALF + ["x"] * HALF), False),
        (pa.array([None] * (2 * HALF - 100) + ["x"] * 100), True),
        (pa.array(["x"] * (2 * HALF - 1) + [None]), True),
        (pa.array([7] * 2 * HALF), False),
        (pc.bit_wise_and(RISING, 1023), False),
        (pa.array([[1]] * 2 * HALF), False),
    ],
    ids=[
        "rising",
        "falling",
        "constant at first",
        "nulls first",
        "nulls to the end",
        "a last null",
        "constant",
        "scattered",
        "lists",
    ],
)
def test_a_sorted_group_of_which_the_head_is_read_is_cut_short(
    parquet_table: Tables, values: pa.Array, cut: bool
) -> None:
    table = parquet_table(pa.table({"a": values}), group_rows=2 * HALF)
    sample = sample_parquet(table.files.files, table.files.bytes, ["a"])
    assert sample.cut_short == (frozenset("a") if cut else frozenset())


def test_what_is_read_whole_is_not_cut_short(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(1_000_000)}))
    assert sample_parquet(table.files.files, table.files.bytes, ["a"]).cut_short == frozenset()


def test_an_unreadable_file_costs_no_more_than_exactness(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(1000)}), files=4)
    on_disk(table.files)[2].write_bytes(b"nonsense")
    sample = sample_parquet(table.files.files, sum(path.stat().st_size for path in on_disk(table.files)), ["a"])
    assert not sample.rows_are_exact
    assert sample.table is not None
    assert sample.table.num_rows == 750


CSV_FIELDS = (Field("a", BIGINT), Field("b", STRING))


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("rows", [100, 200_000])
def test_csv_rows_are_estimated_and_blocks_sampled(text_table: Tables, header: bool, rows: int) -> None:
    text = ("a,b\n" if header else "") + "".join(f'{number},"x, ""{number % 3}"""\n' for number in range(rows))
    table = text_table(TableFormat.CSV, [text], CSV_FIELDS, header=header)
    sample = sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), ["b"])
    assert sample.rows == pytest.approx(rows, rel=0.05)
    assert not sample.rows_are_exact
    assert sample.table is not None
    assert set(sample.table.column("b").to_pylist()) == {f'x, "{number}"' for number in range(3)}
    assert sample.table.num_rows <= MAX_FILES * MAX_ROWS_PER_FILE


def test_csv_nulls_and_rows_of_another_width(text_table: Tables) -> None:
    table = text_table(TableFormat.CSV, ["1,\n2\n3,x\n"], CSV_FIELDS)
    sample = sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), ["a", "b"])
    assert sample.table is not None
    assert sample.table.to_pylist() == [{"a": "1", "b": None}, {"a": "3", "b": "x"}]


def test_json_lines(text_table: Tables) -> None:
    text = "".join(
        f'{{"a": {number}, "b": {"null" if number % 2 else chr(34) + "y" + chr(34)}}}\n' for number in range(50)
    )
    table = text_table(TableFormat.JSON, [text], CSV_FIELDS)
    sample = sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), ["a", "b"])
    assert sample.rows == 50
    assert sample.table is not None
    assert sample.table.to_pylist()[:2] == [{"a": "0", "b": "y"}, {"a": "1", "b": None}]


@pytest.mark.parametrize(
    ("format_", "text", "options"),
    [
        (TableFormat.JSON, "not json\n", {}),
        (TableFormat.JSON, '[{"a": 1}]', {"multi_line": True}),
        (TableFormat.CSV, "", {}),
    ],
)
def test_text_that_cannot_be_sampled(
    text_table: Tables, format_: TableFormat, text: str, options: dict[str, bool]
) -> None:
    table = text_table(format_, [text], CSV_FIELDS, **options)
    assert sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), ["a"]).table is None
