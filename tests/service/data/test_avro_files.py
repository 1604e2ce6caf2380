"""Avro files: codecs, and blocks and schemas that take much memory."""

from __future__ import annotations

import io
import json
import resource
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from service.data import avro_files
from service.data.avro_files import AvroFileError, blocks, columns_of, read_header, records
from tests.support.tables import refused, write_file


def _avro(rows: int, codec: str = "deflate", fields: Any = None) -> io.BytesIO:
    data = io.BytesIO()
    fields = fields or [{"name": "v", "type": "string"}]
    fastavro.writer(data, {"type": "record", "name": "r", "fields": fields}, [{"v": "x"}] * rows, codec=codec)
    data.seek(0)
    return data


_SYNC = b"0123456789abcdef"


def _record(name: str, types: list[Any]) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": type_} for number, type_ in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def _long(value: int) -> bytes:
    parts, value = bytearray(), value << 1
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _with_schema(fields: Any, count: int = 0, block: bytes | None = None) -> io.BytesIO:
    """Returns an Avro file with any fields, and one block of any bytes if there are some."""
    text = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
    data = b"Obj\x01\x02\x16avro.schema" + _long(len(text)) + text + b"\0" + _SYNC
    if block is not None:
        data += _long(count) + _long(len(block)) + block + _SYNC
    return io.BytesIO(data)


def _recoded(codec: str) -> io.BytesIO:
    """Returns an Avro file with a codec that `fastavro` cannot write without other packages."""
    data = _avro(3, "null")
    header = read_header(data)
    (block,) = blocks(data, header)
    stored = bytes(pa.Codec({"zstandard": "zstd"}.get(codec, codec)).compress(block.data, asbytes=True))
    stored += b"" if codec == "zstandard" else zlib.crc32(block.data).to_bytes(4, "big")
    named = b"avro.codec" + bytes([2 * len(codec)]) + codec.encode()
    start = _avro(0, "null").getvalue().replace(b"avro.codec\x08null", named)
    sync = start[-16:]
    return io.BytesIO(start + b"\x06" + bytes([2 * len(stored)]) + stored + sync)


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_of_avro(codec: str) -> None:
    data = _recoded(codec)
    header = read_header(data)
    assert header.codec == codec
    assert list(records(data, header)) == [[{"v": "x"}] * 3]


class TestHostileAvro:
    """Avro files with blocks and schemas that take much memory."""

    @pytest.mark.withstands(
        "an Avro block that is a decompression bomb",
        kind="attack",
        how="a block that is larger than the limit once it is decompressed",
        times=1,
        guaranteed="the file is refused with an error code, and its text is decompressed up to the limit only",
    )
    def test_a_block_that_is_a_bomb(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(avro_files, "MAX_BLOCK_BYTES", 1 << 12)
        data = _avro(100_000)
        header = read_header(data)
        with pytest.raises(AvroFileError, match="block of more than"):
            list(blocks(data, header))

    @pytest.mark.withstands(
        "an Avro record with a huge array",
        kind="attack",
        how="an array of 20 million records of one byte in one record",
        times=1,
        guaranteed="the file is refused with an error code, in less than 200 MB",
    )
    def test_a_record_with_a_huge_array(self) -> None:
        count = 20 << 20
        items = {"type": "array", "items": _record("i", ["int"])}
        block = _long(count) + bytes(count) + b"\0"
        data = _with_schema([{"name": "v", "type": items}], 1, block)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(AvroFileError, match="a record with more than 1000000 values"):
            list(records(data, read_header(data)))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10

    def test_records_with_arrays_are_decoded_in_batches(self) -> None:
        count = 30_000
        one = _long(count) + bytes(count) + b"\0"
        items = {"type": "array", "items": ["null", "int"]}
        data = _with_schema([{"name": "v", "type": items}], 60, one * 60)
        assert [len(batch) for batch in records(data, read_header(data))] == [7] * 8 + [4]

    def test_more_records_than_bytes(self) -> None:
        data = _avro(1, "null")
        header = read_header(data)
        place = data.seek(0, 1)
        changed = io.BytesIO(data.getvalue()[:place] + b"\xfe\xff\xff\xff\x0f" + data.getvalue()[place + 1 :])
        changed.seek(place)
        with pytest.raises(AvroFileError, match="more records than"):
            list(blocks(changed, header))

    @pytest.mark.parametrize(
        ("type_", "text"),
        [
            (["long", "string"], "values of several types"),
            ("null", "is not read"),
            ({"type": "record", "name": "e", "fields": []}, "a record without fields"),
            ({"type": "array", "items": "null"}, "is not read"),
            ({"type": "long", "logicalType": "time-micros"}, "time-micros is not read"),
            ({"type": "record", "name": "s", "fields": [{"name": "s", "type": ["null", "s"]}]}, "contains itself"),
            ({"type": "fixed", "name": "f", "size": 0}, "an invalid schema at the field 'v'"),
            ({"type": "fixed", "name": "f", "size": True}, "an invalid schema"),
            ({"type": "fixed", "name": "f"}, "an invalid schema"),
            ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, "an invalid schema"),
            ({"type": "fixed", "name": "null", "size": 1}, "an invalid schema"),
            ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, "an invalid schema"),
            ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1}, "an invalid schema"),
            ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, "an invalid schema"),
            ({"type": "record", "name": "s", "fields": 5}, "an invalid schema"),
            (5, "an invalid schema"),
            (["null"] * 100 + ["long"], "values of several types"),
            ("\ud800", "whose type \\? is not read"),
        ],
    )
    def test_types_that_are_not_read(self, type_: Any, text: str) -> None:
        header = avro_files.AvroHeader({"fields": [{"name": "v", "type": type_}]}, "null", b"")
        with pytest.raises(AvroFileError, match=text):
            columns_of(header)

    @pytest.mark.parametrize("fields", [5, None, "v", {"name": "v"}, [], [5], [{"type": "long"}], [{"name": 5}]])
    def test_fields_that_are_none(self, fields: Any) -> None:
        header = avro_files.AvroHeader({"type": "record", "name": "r", "fields": fields}, "null", b"")
        with pytest.raises(AvroFileError, match=r"has no fields|an invalid schema"):
            columns_of(header)

    @pytest.mark.parametrize("name", ["a\0", "a" * 5000, "\ud800"])
    @pytest.mark.parametrize("is_nested", [True, False])
    def test_names(self, tmp_path: Path, name: str, is_nested: bool) -> None:
        fields: list[dict[str, Any]] = [{"name": name, "type": "long"}]
        if is_nested:
            fields = [{"name": "v", "type": {"type": "record", "name": "s", "fields": fields}}]
        write_file(tmp_path, "x.avro", _with_schema(fields).getvalue())
        assert refused(tmp_path)[0] == "unsupported_construct"

    def test_too_many_columns(self, tmp_path: Path) -> None:
        write_file(
            tmp_path, "x.avro", _with_schema([{"name": f"c{n}", "type": "long"} for n in range(10_001)]).getvalue()
        )
        code, detail = refused(tmp_path)
        assert code == "unsupported_construct"
        assert "more than 10000 columns" in detail

    @pytest.mark.withstands(
        "an Avro schema that names its records many times",
        kind="attack",
        how="25 records with four fields each, all of the type of the record before",
        times=1,
        guaranteed="422 `unsupported_construct` in less than 2 seconds",
    )
    def test_records_that_name_each_other(self, tmp_path: Path) -> None:
        fields: list[dict[str, Any]] = [{"name": "v", "type": _record("r0", ["long"] * 4)}]
        fields += [{"name": f"v{n}", "type": _record(f"r{n}", [f"r{n - 1}"] * 4)} for n in range(1, 25)]
        write_file(tmp_path, "x.avro", _with_schema(fields).getvalue())
        began = time.process_time()
        assert refused(tmp_path)[0] == "unsupported_construct"
        assert time.process_time() - began < 2

    def test_records_of_a_large_block_are_decoded_in_batches(self) -> None:
        count = 1 << 19
        data = _with_schema([{"name": "v", "type": "boolean"}], count, bytes(count))
        tracemalloc.start()
        try:
            header = read_header(data)
            sizes = [len(batch) for batch in records(data, header)]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (sum(sizes), max(sizes)) == (count, 8192)
        assert peak < 32 << 20

    def test_values_without_bytes_are_not_read_from_a_file_that_was_not_checked(self) -> None:
        data = _with_schema([{"name": "v", "type": {"type": "fixed", "name": "f", "size": 0}}], 1 << 60, b"")
        header = read_header(data)
        with pytest.raises(AvroFileError, match="invalid schema"):
            list(records(data, header))

    @pytest.mark.parametrize(("type_", "most"), [("double", 8), ({"type": "fixed", "name": "f", "size": 4}, 16)])
    def test_the_smallest_record_limits_the_number(self, type_: Any, most: int) -> None:
        for count in (most, most + 1):
            data = _with_schema([{"name": "v", "type": type_}], count, bytes(64))
            header = read_header(data)
            if count == most:
                assert sum(map(len, records(data, header))) == most
            else:
                with pytest.raises(AvroFileError, match="more records than"):
                    list(records(data, header))

    def test_empty_blocks(self) -> None:
        data = _with_schema([{"name": "v", "type": "long"}])
        whole = io.BytesIO(data.getvalue() + (b"\0\0" + _SYNC) * 200_000)
        began = time.process_time()
        assert list(records(whole, read_header(whole))) == []
        assert time.process_time() - began < 10

    def test_a_header_without_an_end(self) -> None:
        with pytest.raises(AvroFileError, match="no valid header"):
            read_header(io.BytesIO(b"Obj\x01" + struct.pack("b", 2) + b"\xfe\xff\xff\xff\x0f" + b"x" * 100))
