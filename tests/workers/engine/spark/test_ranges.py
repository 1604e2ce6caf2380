"""Ranges of columns, from footers."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workers.engine.spark.parquet_sampling import ranges_of
from workers.engine.statistics.model import ValueRange

LOW, HIGH = -(2**63), 2**63 - 1


def footers(tmp_path: Path, *tables: dict[str, Any], **options: Any) -> list[pq.FileMetaData]:
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", **options)
    return [pq.read_metadata(path) for path in sorted(tmp_path.iterdir())]


def test_over_all_files_and_row_groups(tmp_path: Path) -> None:
    files = footers(tmp_path, {"i": [3, None, -7]}, {"i": pa.array([None, None], pa.int64())}, {"i": [HIGH, LOW, 0]})
    assert ranges_of(files, ["i"]) == {"i": ValueRange(LOW, HIGH, True)}
    assert ranges_of(files[:2], ["i"]) == {"i": ValueRange(-7, 3, True)}
    grouped = footers(tmp_path, {"i": list(range(1000))}, row_group_size=1)
    assert ranges_of(grouped[:1], ["i"])["i"].low == 0


def test_an_empty_row_group_changes_no_range(tmp_path: Path) -> None:
    rows = pa.table({"i": pa.array([4, 7], pa.int64())})
    with pq.ParquetWriter(tmp_path / "0.parquet", rows.schema) as writer:
        for table in (rows.slice(0, 0), rows):
            writer.write_table(table)
    (footer,) = footers(tmp_path)
    assert [footer.row_group(number).num_rows for number in range(footer.num_row_groups)] == [0, 2]
    assert ranges_of([footer], ["i"]) == {"i": ValueRange(4, 7, True)}


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([date(1969, 12, 31), date(1970, 1, 2)], -1, 1),
        ([Decimal("-1.50"), Decimal("0.07")], -150, 7),
        ([True, False], 0, 1),
        (pa.array([-128, 127], pa.int8()), -128, 127),
    ],
)
def test_integers_dates_and_decimals_have_ranges(tmp_path: Path, values: Any, low: int, high: int) -> None:
    assert ranges_of(footers(tmp_path, {"v": values}), ["v"]) == {"v": ValueRange(low, high, True)}


@pytest.mark.parametrize("values", [["a"], [1.5], [datetime(2013, 1, 1, tzinfo=UTC)], [[1]], pa.nulls(2, pa.int64())])
def test_other_columns_have_no_range(tmp_path: Path, values: Any) -> None:
    assert ranges_of(footers(tmp_path, {"v": values}), ["v", "missing"]) == {}


def test_a_column_is_not_a_structs_field_that_reads_like_it(tmp_path: Path) -> None:
    column, struct = pa.array([10**12, 10**12 + 1]), pa.array([{"v": 1, "w": 5}, {"v": 2, "w": 6}])
    files = footers(tmp_path, {"st.v": column, "st": struct}, {"st": struct, "st.v": column})
    for one in files:
        assert ranges_of([one], ["st.v", "st.w", "v", "st"]) == {"st.v": ValueRange(10**12, 10**12 + 1, True)}


def test_one_file_without_a_range_removes_the_range(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": [9]}), tmp_path / "9.parquet", write_statistics=False)
    assert ranges_of(footers(tmp_path, {"i": [1]}), ["i"]) == {}
