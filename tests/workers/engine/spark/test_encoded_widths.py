"""Encoded widths of columns, from footers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workers.engine.spark.parquet_sampling import encoded_width


def test_bytes_of_a_value(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"{number:0100}" for number in range(1000)], "n": list(range(1000))})
    pq.write_table(table, path, use_dictionary=False)
    footer = pq.read_metadata(path)
    assert encoded_width("text", [footer, footer]) == pytest.approx(104, abs=2)
    assert encoded_width("n", [footer]) == pytest.approx(8, abs=1)
    assert encoded_width("other", [footer]) == 0.0
    assert encoded_width("n", []) == 0.0


@pytest.mark.parametrize("order", [["st.v", "st"], ["st", "st.v"]])
def test_a_column_is_not_a_structs_field_that_reads_like_it(tmp_path: Path, order: list[str]) -> None:
    columns = {
        "st.v": pa.array([f"{number:0100}" for number in range(1000)]),
        "st": pa.array([{"v": number, "w": number} for number in range(1000)]),
    }
    pq.write_table(pa.table({name: columns[name] for name in order}), tmp_path / "a.parquet", use_dictionary=False)
    footer = pq.read_metadata(tmp_path / "a.parquet")
    assert encoded_width("st.v", [footer]) == pytest.approx(104, abs=2)
    assert encoded_width("st.w", [footer]) == 0.0
