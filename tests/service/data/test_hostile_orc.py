"""Crafted footers of ORC files, and footers as writers make them."""

from __future__ import annotations

import io
import resource
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data import orc_files
from service.data.orc_footer import MAX_DEPTH, MAX_FOOTER_BYTES
from service.data.table_resolution import Resolved, resolve_table
from service.sql.ddl import MAX_COLUMNS

_LIST, _STRUCT, _INT = 10, 12, 3


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _type(kind: int, children: Sequence[int] = (), names: Sequence[bytes] = ()) -> bytes:
    packed = _text(2, b"".join(map(_varint, children))) if children else b""
    return _text(4, _number(1, kind) + packed + b"".join(_text(3, name) for name in names))


def _lists(depth: int) -> bytes:
    """Returns the types of one column of nested lists."""
    lists = b"".join(_type(_LIST, [number + 2]) for number in range(depth))
    return _type(_STRUCT, [1], [b"v"]) + lists + _type(_INT)


def _columns(count: int) -> bytes:
    names = [b"c%d" % number for number in range(count)]
    return _type(_STRUCT, range(1, count + 1), names) + _type(_INT) * count


def _file(footer: bytes, compression: int = 0, block_bytes: int = 1 << 18) -> bytes:
    script = _number(1, len(footer)) + _number(2, compression) + _number(3, block_bytes) + _number(5, 0)
    script += _text(8000, b"ORC")
    return b"ORC" + footer + script + bytes([len(script)])


def _footer(types: bytes) -> bytes:
    return _number(1, 3) + _number(2, 0) + types + _number(6, 0) + _number(8, 0)


def _chunk(stored: bytes, *, is_original: bool = False) -> bytes:
    return (len(stored) << 1 | is_original).to_bytes(3, "little") + stored


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def _resolved(root: Path, content: bytes) -> Resolved:
    (root / "t.orc").write_bytes(content)
    return resolve_table("t", TableSource.model_validate({"path": "t.orc"}), (root,))


_ZEROS = bytes(1 << 18)
_BOMB = _chunk(_deflated(_ZEROS)) * (MAX_FOOTER_BYTES // len(_ZEROS) + 1)

HOSTILE: dict[str, tuple[bytes, str]] = {
    "100,000 nested lists": (_file(_footer(_lists(100_000))), "unsupported_construct"),
    "500 nested lists": (_file(_footer(_lists(500))), "unsupported_construct"),
    "500 nested lists, compressed": (_file(_chunk(_deflated(_footer(_lists(500)))), 1), "unsupported_construct"),
    "a list that contains itself": (
        _file(_footer(_type(_STRUCT, [1], [b"v"]) + _type(_LIST, [1]))),
        "corrupt_file",
    ),
    "a type with two parents": (
        _file(_footer(_type(_STRUCT, [1, 2], [b"v", b"w"]) + _type(_LIST, [2]) + _type(_INT))),
        "corrupt_file",
    ),
    "a child that does not exist": (_file(_footer(_type(_STRUCT, [9], [b"v"]))), "corrupt_file"),
    "no types": (_file(_footer(b"")), "corrupt_file"),
    "too many columns": (_file(_footer(_columns(MAX_COLUMNS))), "unsupported_construct"),
    "no columns": (_file(_footer(_type(_STRUCT))), "unsupported_construct"),
    "a name with U+0000": (_file(_footer(_type(_STRUCT, [1], [b"a\0"]) + _type(_INT))), "unsupported_construct"),
    "a name of 5,000 characters": (
        _file(_footer(_type(_STRUCT, [1], [b"a" * 5000]) + _type(_INT))),
        "unsupported_construct",
    ),
    "a name that is not UTF-8": (_file(_footer(_type(_STRUCT, [1], [b"\xff"]) + _type(_INT))), "corrupt_file"),
    "millions of empty statistics": (_file(_footer(_columns(1) + _text(7, b"") * 2_000_000)), "corrupt_file"),
    "a number of a field above 32 bits": (
        _file(_footer(_columns(1)) + b"\xa2\x80\x80\x80\x10" + _varint(0)),
        "corrupt_file",
    ),
    "a footer that is a bomb": (_file(_BOMB, 1), "corrupt_file"),
    "chunks of a gigabyte": (_file(_chunk(_deflated(_footer(_columns(1)))), 1, 1 << 30), "corrupt_file"),
    "a chunk that is larger than a block": (_file(_chunk(_deflated(_ZEROS)), 1, 1 << 10), "corrupt_file"),
    "empty chunks": (_file(_chunk(b"", is_original=True) * 200_000, 1), "corrupt_file"),
    "a chunk without an end": (_file(b"\xff\xff\xff", 1), "corrupt_file"),
    "a damaged chunk of zlib": (_file(_chunk(b"\xff" * 50), 1), "corrupt_file"),
    "a damaged chunk of Snappy": (_file(_chunk(b"\xff" * 50), 2), "corrupt_file"),
    "a damaged chunk of LZ4": (_file(_chunk(b"\xff" * 50), 4), "corrupt_file"),
    "a damaged chunk of Zstandard": (_file(_chunk(b"\xff" * 50), 5), "corrupt_file"),
    "a compression that is not read": (_file(_chunk(b"x"), 3), "corrupt_file"),
}


@pytest.mark.withstands(
    "an ORC file with a hostile footer",
    kind="attack",
    how="crafted footers: 100,000 nested lists, types that contain themselves, too many columns, names with U+0000, "
    "compressed footers that are bombs or damaged",
    times=24,
    guaranteed="422 `corrupt_file` or `unsupported_construct`, in less than 10 seconds and 600 MB",
)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_footer_is_refused(tmp_path: Path, name: str) -> None:
    content, code = HOSTILE[name]
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(SpecError) as caught:
        _resolved(tmp_path, content)
    assert caught.value.code == code
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10


def test_a_recursion_error_is_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(orc_files, "_type", fail)
    with pytest.raises(SpecError) as caught:
        _resolved(tmp_path, _file(_footer(_columns(1))))
    assert caught.value.code == "corrupt_file"


@pytest.mark.parametrize("types", [_columns(1), _lists(MAX_DEPTH - 1), _columns(MAX_COLUMNS - 1)])
def test_what_is_within_the_limits(tmp_path: Path, types: bytes) -> None:
    assert _resolved(tmp_path, _file(_footer(types))).schema.fields


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("columns", [1, 300])
def test_footers_of_a_writer(tmp_path: Path, compression: str, columns: int) -> None:
    data = io.BytesIO()
    table = pa.table({f"c{number}": pa.array([[{"x": number}]]) for number in range(columns)})
    orc.write_table(table, data, compression=compression)
    fields = _resolved(tmp_path, data.getvalue()).schema.fields
    assert [(field.name, str(field.type)) for field in fields] == [
        (name, "ARRAY<STRUCT<x: BIGINT>>") for name in table.column_names
    ]
