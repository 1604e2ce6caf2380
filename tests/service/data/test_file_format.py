"""Formats by name and first bytes, files that are not what their names say, and compressed files that are bombs."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import resource
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.data.compression import opened_text
from service.data.file_format import check_all_blocks, format_of_content, format_of_name
from service.data.files import find_table_files
from service.jobs.check_job import check_job
from tests.support.tables import refused, resolved, write_file
from workers.engine.spark.sources import TableInput

PARQUET = io.BytesIO()
pq.write_table(pa.table({"a": [1]}), PARQUET)
ORC = io.BytesIO()
orc.write_table(pa.table({"a": [1]}), ORC)
CSV = b"a,b\n1,x\n"
DEFINITION = '<!DOCTYPE a [<!ENTITY e "x">]><a><b>&e;</b></a>'


FOUND: dict[str, tuple[str, bytes, str]] = {
    "a CSV file": ("x.csv", CSV, "csv"),
    "upper case": ("X.CSV", CSV, "csv"),
    "tabs": ("x.tsv", b"a\tb\n1\tx\n", "csv"),
    "gzip": ("x.csv.gz", gzip.compress(CSV), "csv"),
    "bzip2": ("x.ndjson.bz2", bz2.compress(b'{"a":1}\n'), "json"),
    "an array": ("x.json", b'[{"a":1},\n{"a":2}]', "json"),
    "Parquet without a suffix": ("x", PARQUET.getvalue(), "parquet"),
    "a part that Spark writes": ("part-0.snappy.parquet", PARQUET.getvalue(), "parquet"),
    "JSON without a suffix": ("x", b'\xef\xbb\xbf {"a":1}\n', "json"),
    "CSV without a suffix": ("x", CSV, "csv"),
    "a column whose name begins as ORC": ("x.csv", b"ORCID,name\n1,x\n", "csv"),
    "a column whose name begins as Parquet": ("x.csv", b"PAR1,name\n1,x\n", "csv"),
    "such a column without a suffix": ("x", b"ORCID,name\n1,x\n", "csv"),
    "ORC without a suffix": ("x", ORC.getvalue(), "orc"),
}
"""Name and content of a file, and its format."""


@pytest.mark.parametrize("case", FOUND)
def test_a_format_by_name_or_content(tmp_path: Path, case: str) -> None:
    name, data, format_ = FOUND[case]
    write_file(tmp_path, name, data)
    found = resolved(tmp_path)
    assert (found.source.format, found.schema.names[0]) in {(format_, "a"), (format_, "ORCID"), (format_, "PAR1")}


def test_formats_of_names_and_contents() -> None:
    assert format_of_name("a.xml.gz") == "xml"
    assert format_of_name("a.txt") is None
    assert format_of_content(b"<a/>") == "xml"
    assert format_of_content(b"PK\x03\x04...") is None
    assert format_of_content(b"\x00\x01") is None


@pytest.mark.parametrize(
    ("files", "table", "code", "text"),
    [
        ({"x.csv": CSV}, {"format": "parquet"}, "corrupt_file", "looks like a CSV file: set 'format' to csv"),
        ({"x.csv": PARQUET.getvalue()}, {}, "corrupt_file", "set 'format' to parquet"),
        ({"x.parquet": CSV}, {}, "corrupt_file", "'x.parquet' is not a Parquet file"),
        ({"x.parquet": gzip.compress(CSV)}, {}, "corrupt_file", "'x.parquet' is not a Parquet file"),
        ({"x.orc": CSV}, {}, "corrupt_file", "is not an ORC file"),
        ({"x.csv": ORC.getvalue()}, {}, "corrupt_file", "set 'format' to orc"),
        ({"x.orc": b"ORCID,name"}, {}, "corrupt_file", "is not an ORC file"),
        ({"x.avro": CSV}, {}, "corrupt_file", "is not an Avro file"),
        ({"x.orc": b"ORC" + bytes(100)}, {}, "corrupt_file", "is not an ORC file"),
        ({"x.avro": b"Obj\x01" + b"\xff" * 100}, {}, "corrupt_file", "no valid header"),
        ({"x.csv": b"PK\x03\x04xl/workbook"}, {}, "corrupt_file", "a file of Excel"),
        ({"x.csv": gzip.compress(CSV)}, {}, "corrupt_file", "rename the file so that it ends in .gz"),
        ({"x.csv.gz": CSV}, {}, "corrupt_file", "is not compressed, though its name ends in .gz"),
        ({"x.csv.xz": b"\xfd7zXZ\x00"}, {}, "unsupported_construct", "Compress it with gzip or zstd"),
        ({"x.csv.lz4": b"\x04\x22\x4d\x18" + CSV}, {}, "unsupported_construct", "those of other programs"),
        ({"x.csv.snappy": b"\xff\x06\x00\x00sNaPpY" + CSV}, {}, "unsupported_construct", "those of other programs"),
        ({"x.csv.snappy": b"\x7f\xff\xff\xff\x00\x00\x00\x01x"}, {}, "unsupported_construct", "blocks"),
        ({"x.csv.gz": gzip.compress(CSV)[:10] + b"\xff" * 9}, {}, "corrupt_file", "is damaged"),
        ({"a.csv": CSV, "b.json": b"{}"}, {}, "format_unknown", "such as 'orders/*.csv'"),
        ({"a.bin": b"\x00\x01\x02"}, {}, "format_unknown", "set 'format' to one of parquet, csv"),
        ({"a.parquet": PARQUET.getvalue()}, {"schema": "a INT"}, "schema_not_applicable", "contain their schema"),
        ({"a.csv": CSV}, {"options": {"merge_schema": True}}, "option_not_applicable", "no effect on CSV files"),
        ({"a.xml": b"<a><b/></a>"}, {}, "option_required", "requires 'row_tag'"),
        ({"a.xml": DEFINITION.encode()}, {"options": {"row_tag": "a"}}, "corrupt_file", "type"),
        ({"a.xml": DEFINITION.encode("utf-16")}, {"options": {"row_tag": "a"}}, "corrupt_file", "is not UTF-8"),
        ({"a.xml": DEFINITION.encode("utf-16-le")}, {"options": {"row_tag": "a"}}, "corrupt_file", "is not UTF-8"),
        ({"a.xml": DEFINITION.encode("utf-32")}, {"options": {"row_tag": "a"}}, "corrupt_file", "is not UTF-8"),
        ({"a.csv": CSV}, {"version": 1}, "option_not_applicable", "'version' has no effect on CSV files"),
        ({"a.csv": CSV}, {"format": "delta"}, "corrupt_file", "has no directory _delta_log"),
    ],
)
def test_files_that_are_not_what_they_seem(
    tmp_path: Path, files: dict[str, bytes], table: dict[str, Any], code: str, text: str
) -> None:
    for name, data in files.items():
        write_file(tmp_path, name, data)
    found, detail = refused(tmp_path, **table)
    assert found == code
    assert text in detail


@pytest.mark.withstands(
    "Compressed CSV files that are bombs",
    kind="attack",
    how="300 MB of rows in gzip, zlib, bzip2 and Zstandard, in several members where the format has them",
    times=4,
    guaranteed="the columns are inferred from the first 256 KB of text; nothing is decompressed beyond that",
)
@pytest.mark.parametrize("compress", ["gzip", "zlib", "bzip2", "zstd"])
def test_of_a_bomb_only_the_beginning_is_decompressed(tmp_path: Path, compress: str) -> None:
    line = b"1,x\n" * (1 << 18)
    compressors: dict[str, Callable[[], bytes]] = {
        "gzip": lambda: gzip.compress(CSV) + gzip.compress(line) * 300,
        "zlib": lambda: zlib.compress(CSV + line * 100),
        "bzip2": lambda: bz2.compress(CSV) + bz2.compress(line) * 300,
        "zstd": lambda: bytes(pa.Codec("zstd").compress(CSV + line * 300, asbytes=True)),
    }
    data = compressors[compress]()
    suffix = {"gzip": "gz", "zlib": "deflate", "bzip2": "bz2", "zstd": "zst"}[compress]
    write_file(tmp_path, f"x.csv.{suffix}", data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resolved(tmp_path).source.declared_schema == "a BIGINT, b STRING"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize(
    ("name", "options", "delimiter"),
    [
        ("x.tsv", {}, "\t"),
        ("x.TSV.gz", {}, "\t"),
        ("x.tsvx.csv", {}, ","),
        ("x.csv", {}, ","),
        ("x.tsv", {"delimiter": ";"}, ";"),
    ],
)
def test_the_delimiter_by_the_suffix(tmp_path: Path, name: str, options: dict[str, Any], delimiter: str) -> None:
    data = CSV.replace(b",", delimiter.encode())
    write_file(tmp_path, name, gzip.compress(data) if name.endswith(".gz") else data)
    assert resolved(tmp_path, options=options).source.options.delimiter == delimiter


def test_only_csv_files_have_the_delimiter_of_their_suffix(tmp_path: Path) -> None:
    write_file(tmp_path, "x.tsv", b'{"a":1}\n')
    assert resolved(tmp_path, format="json").source.options.delimiter == ","


def test_files_with_different_delimiters_by_their_suffixes_are_refused(tmp_path: Path) -> None:
    write_file(tmp_path, "1.csv", CSV)
    write_file(tmp_path, "2.tsv", CSV)
    code, detail = refused(tmp_path)
    assert (code, "'2.tsv' is a .tsv file and '1.csv' is not" in detail) == ("option_required", True)
    assert resolved(tmp_path, options={"delimiter": ","}).schema.names == ("a", "b")


def test_a_table_whose_types_were_not_inferred_is_read_by_workers_of_older_versions(tmp_path: Path) -> None:
    write_file(tmp_path, "x.csv", CSV)
    source = resolved(tmp_path, options={"infer_schema": False}).source
    assert (source.declared_schema, source.needs_version_10) == ("a STRING, b STRING", False)


def test_the_column_of_corrupt_records_is_compared_without_case(tmp_path: Path) -> None:
    write_file(tmp_path, "x.json", b'{"a":1}\n')
    options = {"mode": "permissive", "column_name_of_corrupt_record": "BAD"}
    found = resolved(tmp_path, schema="a INT, bad STRING", options=options)
    assert found.schema.names == ("a", "BAD")
    files = find_table_files("t", found.source, (tmp_path,))
    source = found.source.model_copy(
        update={"options": found.source.options.model_copy(update={"column_name_of_corrupt_record": "bad"})}
    )
    assert TableInput(source, files, found.schema).data_schema.names == ("a",)


WITHOUT_TEXT = {
    "members without text": ("gz", gzip.compress(b"") * 1_000_000),
    "members of one byte": ("gz", gzip.compress(b"1") * 1_000_000),
    "blocks without text": ("snappy", bytes(20 << 20)),
    "parts of one byte": ("snappy", struct.pack(">i", 8 << 20) + b"\x00\x00\x00\x03\x01\x00a" * (3 << 20)),
}
"""Suffix and content of files of 20 MB whose text takes seconds to decompress."""


@pytest.mark.parametrize("case", WITHOUT_TEXT)
def test_a_file_with_nearly_no_text_is_refused_in_time(tmp_path: Path, case: str) -> None:
    suffix, data = WITHOUT_TEXT[case]
    write_file(tmp_path, f"x.csv.{suffix}", data)
    start = time.process_time()
    assert refused(tmp_path)[0] in {"corrupt_file", "unsupported_construct"}
    assert time.process_time() - start < 1.5


@pytest.mark.parametrize(
    ("name", "header", "needs"), [("x.csv.gz", True, True), ("x.csv.gz", False, False), ("x.csv", True, False)]
)
def test_workers_of_older_versions_cannot_read_compressed_headers(
    tmp_path: Path, name: str, header: bool, needs: bool
) -> None:
    write_file(tmp_path, name, gzip.compress(CSV) if name.endswith(".gz") else CSV)
    posted = {
        "tables": {"t": {"path": "t", "schema": "a STRING, b STRING", "header": header}},
        "sql": "SELECT a FROM t",
    }
    checked = check_job(JobSpec.model_validate(posted), (tmp_path,))
    assert checked.spec.needs_version < 10
    assert (checked.needs_version == 10) == needs


@pytest.mark.parametrize(
    ("schema", "sql", "version"),
    [
        ("a ARRAY<INT>", "SELECT a FROM t", 12),
        ("a STRING", "SELECT split(a, ',') AS x FROM t", 12),
        ("a STRING", "SELECT t.a, x.c0 FROM t LATERAL VIEW json_tuple(a, 'b') x", 12),
        ("a STRING", "SELECT coalesce(a, 'x') AS x FROM t", 3),
    ],
)
def test_workers_of_older_versions_do_not_compute_with_nested_values(
    tmp_path: Path, schema: str, sql: str, version: int
) -> None:
    write_file(tmp_path, "x.json", b'{"a": null}')
    posted = {"tables": {"t": {"path": "t", "format": "json", "schema": schema}}, "sql": sql}
    assert check_job(JobSpec.model_validate(posted), (tmp_path,)).needs_version == version


def test_the_blocks_of_some_files_are_checked_at_submission_and_those_of_all_by_the_worker(tmp_path: Path) -> None:
    good = struct.pack(">ii", len(CSV), 10) + b"\x08\x1c" + CSV
    for number in range(40):
        write_file(tmp_path, f"{number:02}.csv.snappy", good)
    write_file(tmp_path, "01.csv.snappy", b"\x7f\xff\xff\xff\x00\x00\x00\x01x")
    source = resolved(tmp_path).source
    with pytest.raises(SpecError, match=r"01\.csv\.snappy"):
        check_all_blocks("t", source, find_table_files("t", source, (tmp_path,)))


def _skippable(size: int) -> bytes:
    return struct.pack("<II", 0x184D2A50, size) + bytes(size)


def _zstd(text: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(text, asbytes=True))


@pytest.mark.parametrize(
    "data",
    [
        _zstd(b"a,b\n") + _zstd(b"1,x\n"),
        _skippable(5) + _zstd(b"a,b\n") + _skippable(0) + _zstd(b"") * 3 + _zstd(b"1,x\n") + _skippable(9),
    ],
)
def test_frames_of_zstandard(tmp_path: Path, data: bytes) -> None:
    write_file(tmp_path, "x.csv.zst", data)
    assert resolved(tmp_path).source.declared_schema == "a BIGINT, b STRING"


@pytest.mark.parametrize("frame", [_skippable(20 << 20), _zstd(b"") * 200_000])
def test_frames_of_zstandard_without_text(tmp_path: Path, frame: bytes) -> None:
    write_file(tmp_path, "x.csv.zst", _zstd(CSV) + frame + _zstd(CSV))
    assert refused(tmp_path)[0] == "corrupt_file"


def _lz4(text: bytes, part: int) -> bytes:
    parts = [
        bytes(pa.Codec("lz4_raw").compress(text[at : at + part], asbytes=True)) for at in range(0, len(text), part)
    ]
    return struct.pack(">i", len(text)) + b"".join(struct.pack(">i", len(one)) + one for one in parts)


def test_blocks_of_lz4_with_several_parts(tmp_path: Path) -> None:
    # Hadoop writes them for a line of more than its buffer of 256 KB.
    text = CSV + b"".join(b"%d,%s\n" % (number, b"x" * (number % 50)) for number in range(40_000))
    data = _lz4(text, 260_000)
    write_file(tmp_path, "x.csv.lz4", data + _lz4(b"9,z\n", 260_000))
    assert resolved(tmp_path).source.declared_schema == "a BIGINT, b STRING"
    with opened_text(tmp_path / "t" / "x.csv.lz4") as stream:
        assert stream.read(1 << 30) == text + b"9,z\n"
    write_file(tmp_path, "x.csv.lz4", data[:8] + bytes(300) + data[308:])
    assert refused(tmp_path)[0] == "unsupported_construct"


def test_a_header_of_a_hundred_megabytes(tmp_path: Path) -> None:
    write_file(tmp_path, "x.csv", b"")
    with (tmp_path / "t" / "x.csv").open("r+b") as file:
        file.truncate(100 << 20)
        file.seek(0)
        file.write(b"a," * 1000)
    assert refused(tmp_path)[0] in {"schema_cannot_be_inferred", "corrupt_file"}
    assert refused(tmp_path, schema="a INT", header=True)[0] in {"schema_mismatch", "corrupt_file"}


class TestPartitionNames:
    """Names of directories that are no sensible partitions."""

    def write(self, root: Path, *directories: str) -> None:
        for directory in directories:
            (root / "t" / directory).mkdir(parents=True)
            (root / "t" / directory / "x.csv").write_bytes(CSV)

    @pytest.mark.parametrize(
        ("directories", "text"),
        [
            (("day=1", "month=1"), "different partition columns"),
            (("day=1", "day=1/hour=2"), "different partition columns"),
            (("x/day=1",), "inside of a directory that is no partition"),
            (("day=",), "no name or no value"),
            (("=1",), "no name or no value"),
            (("day=1/DAY=2",), "a partition column twice"),
            (("/".join(f"c{number}=1" for number in range(16)) + "/d=1",), "nested more than|or more than 16"),
        ],
    )
    def test_they_are_refused(self, tmp_path: Path, directories: tuple[str, ...], text: str) -> None:
        self.write(tmp_path, *directories)
        code, detail = refused(tmp_path)
        assert code == "unsupported_construct"
        assert any(part in detail for part in text.split("|"))

    def test_a_name_that_is_no_text(self, tmp_path: Path) -> None:
        self.write(tmp_path, "d%00y=1")
        code, detail = refused(tmp_path)
        assert (code, "'d%00y=1' of 't' contains the character U+0000" in detail) == ("unsupported_construct", True)

    def test_a_name_that_is_not_utf8(self, tmp_path: Path) -> None:
        self.write(tmp_path, os.fsdecode(b"d\xe4y=1"))
        code, detail = refused(tmp_path)
        assert (code, "or is not UTF-8" in detail, detail.isascii()) == ("unsupported_construct", True, True)

    def test_a_day_that_does_not_exist_is_text(self, tmp_path: Path) -> None:
        self.write(tmp_path, "day=2026-02-28", "day=2026-02-30")
        assert resolved(tmp_path).source.partitions == "day STRING"

    @pytest.mark.parametrize(
        ("value", "fitting", "others"),
        [
            ("a", ["STRING"], ["INT", "DATE"]),
            ("300", ["SMALLINT", "INT", "DOUBLE"], ["TINYINT", "DATE"]),
            ("3000000000", ["BIGINT"], ["INT"]),
            ("2026-02-28", ["DATE", "STRING"], ["INT"]),
            ("2026-2-8", ["DATE"], []),
            ("2026-02-30", ["STRING"], ["DATE"]),
            ("__HIVE_DEFAULT_PARTITION__", ["INT", "DATE"], []),
        ],
    )
    def test_declared_types_are_compared_with_the_values(
        self, tmp_path: Path, value: str, fitting: list[str], others: list[str]
    ) -> None:
        self.write(tmp_path, f"k={value}")
        for type_ in fitting:
            assert resolved(tmp_path, partitions=f"k {type_}").source.partitions == f"k {type_}"
        for type_ in others:
            code, detail = refused(tmp_path, partitions=f"k {type_}")
            assert (code, f"'{value}'" in detail) == ("schema_mismatch", True)

    def test_a_value_is_no_path(self, tmp_path: Path) -> None:
        self.write(tmp_path, "day=..%2F..%2Fetc", "day=%00")
        found = resolved(tmp_path)
        assert found.source.partitions == "day STRING"
        (tmp_path / "t" / "day=link").symlink_to(tmp_path / "t" / "day=%00")
        assert "link" in refused(tmp_path)[1]

    def test_a_link_out_of_the_roots(self, tmp_path: Path) -> None:
        (tmp_path / "root").mkdir()
        self.write(tmp_path / "root", "day=1")
        self.write(tmp_path, "day=2")
        (tmp_path / "root" / "t" / "day=2").symlink_to(tmp_path / "t" / "day=2")
        assert refused(tmp_path / "root")[0] == "path_outside_data_roots"

    @pytest.mark.parametrize(
        ("link", "target"),
        [
            ("k=1/c.csv", "k=2/x.csv"),
            ("k=1/c.csv", "k=1/x.csv"),
            ("c.csv", "k=2/x.csv"),
            ("d", "k=2"),
            ("k=1/d", "k=2"),
            ("k=1/c.csv", "../other.csv"),
        ],
    )
    def test_links_in_partitions_or_to_them(self, tmp_path: Path, link: str, target: str) -> None:
        self.write(tmp_path, "k=1", "k=2")
        (tmp_path / "other.csv").write_bytes(CSV)
        (tmp_path / "t" / link).symlink_to(tmp_path / "t" / target)
        code, detail = refused(tmp_path)
        assert code == "unsupported_construct"
        assert "in its partitions" in detail

    def test_a_directory_whose_files_are_all_links(self, tmp_path: Path) -> None:
        (tmp_path / "t" / "k=1").mkdir(parents=True)
        (tmp_path / "other.csv").write_bytes(CSV)
        (tmp_path / "t" / "k=1" / "x.csv").symlink_to(tmp_path / "other.csv")
        assert "in its partitions" in refused(tmp_path)[1]

    def test_a_name_with_an_equals_sign_is_no_partition(self, tmp_path: Path) -> None:
        write_file(tmp_path, "a.csv", CSV)
        write_file(tmp_path, "k=2.csv", CSV)
        (tmp_path / "t" / "k=1.csv").symlink_to(tmp_path / "t" / "k=2.csv")
        assert resolved(tmp_path).source.partitions is None

    def test_names_that_begin_with_an_underscore_are_skipped(self, tmp_path: Path) -> None:
        self.write(tmp_path, "day=1", "_x=1", ".y=1", "day=1/_z=1")
        found = resolved(tmp_path)
        assert (found.source.partitions, found.bytes) == ("day BIGINT", len(CSV))

    def test_a_column_of_a_csv_file_with_the_name_of_a_partition(self, tmp_path: Path) -> None:
        self.write(tmp_path, "a=1")
        assert refused(tmp_path)[0] == "duplicate_column"


class TestWildcards:
    """Paths with wildcards."""

    @pytest.mark.parametrize(
        ("pattern", "names"),
        [
            ("t/*.csv", 2),
            ("t/[ab].csv", 2),
            ("t/?.csv", 2),
            ("t/sub*", 1),
            ("t/**/*.csv", 3),
            ("**/c.csv", 1),
            ("t/*", 3),
        ],
    )
    def test_matches(self, tmp_path: Path, pattern: str, names: int) -> None:
        write_file(tmp_path, "a.csv", b"v\n1\n")
        write_file(tmp_path, "b.csv", b"v\n1\n")
        (tmp_path / "t" / "sub").mkdir()
        (tmp_path / "t" / "sub" / "c.csv").write_bytes(b"v\n1\n")
        (tmp_path / "t" / "_hidden.csv").write_bytes(b"w\n1\n")
        assert resolved(tmp_path, path=pattern).bytes == 4 * names
        assert resolved(tmp_path, path=f"{tmp_path}/{pattern}").bytes == 4 * names

    def test_a_file_of_that_name_has_precedence(self, tmp_path: Path) -> None:
        write_file(tmp_path, "[a].csv", b"v\n12\n")
        write_file(tmp_path, "a.csv", b"v\n1\n")
        assert resolved(tmp_path, path="t/[a].csv").bytes == 5

    @pytest.mark.parametrize(
        "pattern", ["../*.csv", "t/*/../../x.csv", "/etc/*", "none/*.csv", "t/*.xml", "*" * 99 + "b"]
    )
    def test_nothing_outside_is_found(self, tmp_path: Path, pattern: str) -> None:
        (tmp_path / "root").mkdir()
        write_file(tmp_path / "root", "a.csv", CSV)
        (tmp_path / "x.csv").write_bytes(CSV)
        assert refused(tmp_path / "root", path=pattern)[0] in {"path_not_found", "path_outside_data_roots"}
