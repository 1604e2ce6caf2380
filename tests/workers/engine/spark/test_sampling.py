"""Samples are limited, spread over files and rows, and repeatable."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from service.config.data import DataSettings, parse_root
from service.contract.read_options import TableFormat
from service.contract.tables import TableSource
from service.data.file_io import UriFile
from service.data.files import find_table_files
from service.data.roots import StoreRoot, open_store
from service.sql.types.data_types import BIGINT, STRING, Field
from tests.support.object_store import KEYS, ObjectStore
from tests.support.tables import on_disk
from workers.engine.spark.parquet_sampling import MAX_ROWS_PER_FILE, sample_parquet
from workers.engine.spark.sampling import MAX_FILES, sample_text
from workers.engine.spark.sources import TableInput

Tables = Callable[..., TableInput]


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


HALF = 800_000
RISING = pa.array(range(2 * HALF))


@pytest.mark.parametrize(
    ("values", "cut"),
    [
        (RISING, True),
        (pc.subtract(pa.scalar(0), RISING), True),
        (pc.max_element_wise(RISING, pa.scalar(2 * HALF - 100)), True),
        (pa.array([None] * (HALF // 4) + ["x"] * (7 * HALF // 4)), False),
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


def test_columns_that_are_read_whole_are_not_cut_short(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(400_000)}))
    assert sample_parquet(table.files.files, table.files.bytes, ["a"]).cut_short == frozenset()


def test_an_unreadable_file_makes_the_rows_inexact(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": range(1000)}), files=4)
    on_disk(table.files)[2].write_bytes(b"nonsense")
    sample = sample_parquet(table.files.files, sum(path.stat().st_size for path in on_disk(table.files)), ["a"])
    assert not sample.rows_are_exact
    assert sample.table is not None
    assert sample.table.num_rows == 750


CSV_FIELDS = (Field("a", BIGINT), Field("b", STRING))


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("rows", [100, 200_000])
def test_csv_rows_of_small_files_are_counted_and_blocks_of_large_ones_sampled(
    text_table: Tables, header: bool, rows: int
) -> None:
    text = ("a,b\n" if header else "") + "".join(f'{number},"x, ""{number % 3}"""\n' for number in range(rows))
    table = text_table(TableFormat.CSV, [text], CSV_FIELDS, header=header)
    sample = sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), ["b"])
    assert sample.rows == pytest.approx(rows, rel=0.05)
    assert sample.rows_are_exact == (rows == 100)
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
        (TableFormat.CSV, '1,"two\nlines"\n', {"multi_line": True}),
    ],
)
def test_text_that_cannot_be_sampled(
    text_table: Tables, format_: TableFormat, text: str, options: dict[str, bool]
) -> None:
    table = text_table(format_, [text], CSV_FIELDS, **options)
    assert sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), ["a"]).table is None


def test_rows_of_values_over_several_lines_are_counted_outside_of_quotes(text_table: Tables) -> None:
    row = '1,"' + "x\n" * 19 + '"\n'
    table = text_table(TableFormat.CSV, [row * 100, row * 20_000], CSV_FIELDS, multi_line=True)
    sample = sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), ["a", "b"])
    assert (sample.rows, sample.table) == (20_100, None)


def test_a_store_gives_the_same_sample(parquet_table: Tables, text_table: Tables, object_store: ObjectStore) -> None:
    fields = (Field("uid", BIGINT), Field("name", STRING))
    lines = "".join(f"{number},n{number % 7}\n" for number in range(60_000))
    parquet = parquet_table(pa.table({"a": range(200_000), "b": ["x"] * 200_000}), files=3, group_rows=10_000)
    text = text_table(TableFormat.CSV, [lines, lines], fields, name="text")
    object_store.make_bucket("sampling")
    settings = DataSettings(
        s3_endpoint=object_store.endpoint,
        s3_region="us-east-1",
        s3_access_key=KEYS["aws_access_key_id"],
        s3_secret_key=KEYS["aws_secret_access_key"],
        store_attempts=1,
    )
    location = parse_root("s3a://sampling")
    root = StoreRoot(location, open_store(location, settings))
    stored = {}
    for table in (parquet, text):
        files = on_disk(table.files)
        object_store.put("sampling", {f"{table.files.table}/{path.name}": path.read_bytes() for path in files})
        source = table.source.model_copy(update={"path": table.files.table})
        stored[table.files.table] = find_table_files(table.files.table, source, [root])
    there, here = stored["t"], parquet.files
    assert there.bytes == here.bytes
    found, known = (sample_parquet(files.files, files.bytes, ["a"]) for files in (there, here))
    assert (found.rows, found.rows_are_exact) == (known.rows, True)
    assert found.table is not None
    assert known.table is not None
    assert found.table.num_rows == pytest.approx(known.table.num_rows, rel=0.05)
    there, here = stored["text"], text.files
    found, known = (
        sample_text(text.source, files.files, files.bytes, ["uid", "name"], ["name"]) for files in (there, here)
    )
    assert found.rows == known.rows
    assert found.table == known.table


def test_an_unavailable_store_gives_no_sample_and_no_error() -> None:
    store = open_store(
        parse_root("s3a://gone"),
        DataSettings(
            s3_endpoint="http://127.0.0.1:1", s3_region="x", s3_access_key="a", s3_secret_key="b", store_attempts=1
        ),
    )
    files = [UriFile(f"s3a://gone/{number}", str(number), 1000, store) for number in range(64)]
    sample = sample_parquet(files, 64_000, ["a"])
    assert (sample.rows_are_exact, sample.table) == (False, None)
    source = TableSource(format=TableFormat.CSV, path="x", declared_schema="a INT")
    assert sample_text(source, files, 64_000, ["a"], ["a"]).table is None


@pytest.mark.parametrize(
    ("format_", "texts", "options", "rows"),
    [
        (TableFormat.CSV, ["1,x\n2,y\n", "3,z"], {}, 3),
        (TableFormat.CSV, ["\na,b\n1,x\n\n2,y\n"], {"header": True}, 2),
        (TableFormat.JSON, ['{"a": 1}\n\n {"a": 2}\n'], {}, 2),
    ],
)
def test_rows_of_small_files_are_counted(
    text_table: Tables, format_: TableFormat, texts: list[str], options: dict[str, bool], rows: int
) -> None:
    table = text_table(format_, texts, CSV_FIELDS, **options)
    sample = sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), [])
    assert (sample.rows, sample.rows_are_exact) == (rows, True)


@pytest.mark.parametrize(
    ("format_", "text", "options"),
    [
        (TableFormat.CSV, "1,x\n" * 100_000, {}),
        (TableFormat.CSV, "1,x\nnope\n", {"mode": "dropmalformed"}),
        (TableFormat.CSV, "#1\n1,x\n", {"comment": "#"}),
        (TableFormat.CSV, '1,"two\nlines"\n', {"multi_line": True}),
        (TableFormat.JSON, '[{"a": 1}, {"a": 2}]\n', {}),
    ],
    ids=["large", "dropped rows", "comments", "line breaks", "array"],
)
def test_rows_are_estimated_where_lines_are_not_rows(
    text_table: Tables, format_: TableFormat, text: str, options: dict[str, Any]
) -> None:
    table = text_table(format_, [text], CSV_FIELDS, **options)
    sample = sample_text(table.source, table.files.files, table.files.bytes, ("a", "b"), [])
    assert not sample.rows_are_exact
