"""Widths of texts in memory, from a few rows of a few files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workers.engine.spark import parquet_sampling
from workers.engine.spark.parquet_sampling import MARGIN, decoded_widths
from workers.engine.spark.sampling import FileReads

ROWS = 20_000


def written(path: Path, name: str = "a.parquet", **columns: pa.Array | list[object]) -> Path:
    pq.write_table(pa.table(columns), path / name, row_group_size=ROWS // 4)
    return path / name


def widths(*files: Path, columns: tuple[str, ...] = ("s",)) -> dict[str, float | None]:
    reads = FileReads()
    found = decoded_widths(files, columns, reads)
    assert reads.warnings() == ()
    return found


def test_repeated_texts_have_their_length_and_not_their_encoded_width(tmp_path: Path) -> None:
    repeated = written(tmp_path, s=["x" * 200] * ROWS, t=[None, "ab"] * (ROWS // 2), b=[b"123"] * ROWS)
    assert repeated.stat().st_size < 10_000
    found = widths(repeated, columns=("s", "t", "b"))
    assert found == {"s": MARGIN * 200, "t": MARGIN * 1, "b": MARGIN * 3}


def test_the_widest_place_counts(tmp_path: Path) -> None:
    # In the last row group of one file, and in one of several files.
    short, long = ["ab"] * (3 * ROWS // 4), ["x" * 100] * (ROWS // 4)
    assert widths(written(tmp_path, s=[*short, *long])) == {"s": MARGIN * 100}
    files = [written(tmp_path, f"{number}.parquet", s=long if number == 2 else short) for number in range(4)]
    assert widths(*files) == {"s": MARGIN * 100}


@pytest.mark.not_quick
def test_a_row_group_has_several_places_where_there_are_few(tmp_path: Path) -> None:
    short, long = ["ab"] * ROWS, ["x" * 5_000] * (3 * ROWS)
    for name, texts in (("middle", [*short, *long, *short]), ("end", [*short, *long])):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"s": texts}), path)
        assert widths(path) == {"s": MARGIN * 5_000}
        assert widths(path, path) == {"s": MARGIN * (2 if name == "middle" else 5_000)}


def test_a_row_group_that_is_too_large_to_read_through_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": ["ab"] * ROWS}), path)
    monkeypatch.setattr(parquet_sampling, "_MAX_SLICED_BYTES", 10)
    assert widths(path) == {"s": None}
    # Of four files a beginning is enough.
    assert widths(*[path] * 4) == {"s": MARGIN * 2}


def test_a_field_of_a_struct_is_not_the_column_of_its_name(tmp_path: Path) -> None:
    fields = written(tmp_path, "fields.parquet", st=[{"s": "x" * 500}] * ROWS)
    assert widths(fields) == {"s": None}
    assert widths(fields, written(tmp_path, s=["ab"] * ROWS)) == {"s": MARGIN * 2}


def test_the_width_is_never_below_the_encoded_width(tmp_path: Path) -> None:
    # Short at the four places that are read, and long between them.
    long = {*range(5_000, 30_000), *range(40_000, 60_000)}
    texts = [f"{number:0200}" if number in long else f"{number % 1000:04}" for number in range(5 * ROWS)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": texts}), path, use_dictionary=False)
    (width,) = widths(path).values()
    assert width == pytest.approx(4 + 0.45 * 200 + 0.55 * 4, rel=0.05)


def test_megabytes_that_repeat_are_read_once(tmp_path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array(["y" * 1_000_000]))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": texts}), path, store_schema=False)
    assert widths(path) == {"s": MARGIN * 1_000_000}


def test_widths_that_no_file_has(tmp_path: Path) -> None:
    assert widths(written(tmp_path, s=pa.array([], pa.string()))) == {"s": None}
    assert widths(written(tmp_path, n=[1, 2]), written(tmp_path, "b.parquet", s=["ab"] * ROWS)) == {"s": MARGIN * 2}
    assert decoded_widths([tmp_path], (), FileReads()) == {}


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    good, bad = written(tmp_path, s=["ab"] * ROWS), tmp_path / "bad.parquet"
    bad.write_bytes(b"nothing of the kind")
    reads = FileReads()
    assert decoded_widths([good, bad], ("s",), reads) == {"s": MARGIN * 2}
    assert reads.warnings() == ("A sample of bad.parquet cannot be read: its content does not match its format.",)


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()])
def test_every_type_of_text(tmp_path: Path, type_: pa.DataType) -> None:
    assert widths(written(tmp_path, s=pa.array(["abcd"] * ROWS).cast(type_))) == {"s": MARGIN * 4}
