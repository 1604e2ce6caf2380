"""Columns from footers, and from declarations."""

from __future__ import annotations

import datetime
import gzip
import random
import resource
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.files import find_table_files
from service.data.schemas import FOOTERS_COMPARED, data_type, read_schema
from service.sql.ddl import MAX_COLUMNS
from service.sql.types.data_types import Schema
from tests.support.privileges import without_privileges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HINT = " Set the option 'merge_schema' to read the columns of all files."


def read(root: Path, path: str = "t", **source: Any) -> Schema:
    table = TableSource.model_validate({"format": "parquet", "path": path, **source})
    return read_schema("t", table, find_table_files("t", table, [root]))


def refusal(root: Path, path: str = "t", **source: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read(root, path, **source)
    return caught.value


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a table as `t/<name>` below the root."""

    def write(name: str, **columns: pa.Array) -> Path:
        (tmp_path / "t").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "t" / name)
        return tmp_path / "t" / name

    return write


EVERY_TYPE = {
    "bo": pa.array([True]),
    "i8": pa.array([1], pa.int8()),
    "i16": pa.array([1], pa.int16()),
    "i32": pa.array([1], pa.int32()),
    "i64": pa.array([1], pa.int64()),
    "u8": pa.array([1], pa.uint8()),
    "u16": pa.array([1], pa.uint16()),
    "u32": pa.array([1], pa.uint32()),
    "u64": pa.array([1], pa.uint64()),
    "f32": pa.array([1.0], pa.float32()),
    "f64": pa.array([1.0], pa.float64()),
    "dec": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
    "wide": pa.array([Decimal("1.50")], pa.decimal128(38, 10)),
    "s": pa.array(["x"]),
    "ls": pa.array(["x"], pa.large_string()),
    "vs": pa.array(["x"], pa.string_view()),
    "dict": pa.array(["x"]).dictionary_encode(),
    "b": pa.array([b"x"]),
    "vb": pa.array([b"x"], pa.binary_view()),
    "fixed": pa.array([b"xy"], pa.binary(2)),
    "day": pa.array([datetime.date(2020, 1, 1)]),
    "ms": pa.array([0], pa.timestamp("ms", tz="UTC")),
    "us": pa.array([0], pa.timestamp("us", tz="UTC")),
    "ntz": pa.array([0], pa.timestamp("us")),
}


@pytest.mark.spark
def test_types_are_those_that_spark_reads(spark: SparkSession, tmp_path: Path, write: Callable[..., Path]) -> None:
    write("a.parquet", **EVERY_TYPE)
    in_spark = spark.read.parquet(str(tmp_path / "t")).schema
    ours = read(tmp_path)
    assert {field.name: str(field.type) for field in ours.fields} == {
        field.name: field.dataType.simpleString().upper() for field in in_spark
    }


NESTED = {
    "a": pa.array([[1, None]], pa.list_(pa.int32())),
    "large": pa.array([["x"]], pa.large_list(pa.large_string())),
    "fixed": pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)),
    "st": pa.array([{"p": 1, "t": "x"}], pa.struct([("p", pa.uint8()), ("t", pa.string())])),
    "deep": pa.array(
        [[{"d": [Decimal("1.50")], "when": 0}]],
        pa.list_(pa.struct([("d", pa.list_(pa.decimal128(10, 2))), ("when", pa.timestamp("us", tz="UTC"))])),
    ),
    "m": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
}


def _in_sparks_way(type_: object) -> str:
    return str(type_).replace(": ", ":").replace(", ", ",")


@pytest.mark.spark
@pytest.mark.parametrize("old_timestamps", [False, True])
def test_nested_types_are_those_that_spark_reads(spark: SparkSession, tmp_path: Path, old_timestamps: bool) -> None:
    (tmp_path / "t").mkdir()
    path = tmp_path / "t" / "a.parquet"
    pq.write_table(pa.table(NESTED), path, use_deprecated_int96_timestamps=old_timestamps)
    ours = read(tmp_path)
    assert {field.name: _in_sparks_way(field.type).upper() for field in ours.fields} == {
        field.name: field.dataType.simpleString().upper() for field in spark.read.parquet(str(path)).schema
    }
    assert [field.name for field in ours.fields if not field.type.is_groupable] == ["m"]


@pytest.mark.spark
def test_old_timestamps_are_instants(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"old": pa.array([0], pa.timestamp("us"))})
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet", use_deprecated_int96_timestamps=True)
    (field,) = spark.read.parquet(str(tmp_path / "t")).schema
    assert str(read(tmp_path).fields[0].type) == field.dataType.simpleString().upper() == "TIMESTAMP"


@pytest.mark.parametrize(
    "arrow",
    [
        pa.time64("us"),
        pa.timestamp("ns"),
        pa.null(),
        pa.duration("s"),
        pa.decimal256(50, 2),
    ],
    ids=str,
)
def test_what_cannot_be_computed_with_is_other(arrow: pa.DataType) -> None:
    assert data_type(arrow).name == "OTHER"


def test_nested_files_that_differ_are_told_apart_in_sparks_words(tmp_path: Path, write: Callable[..., Path]) -> None:
    write("a.parquet", x=pa.array([[1]], pa.list_(pa.field("one", pa.int32()))))
    other = write("b.parquet", x=pa.array([[1]], pa.list_(pa.field("another", pa.int32()))))
    assert str(read(tmp_path).fields[0].type) == "ARRAY<INT>"
    pq.write_table(pa.table({"x": [[1.5]]}), other)
    assert str(refusal(tmp_path)) == "The column x is ARRAY<INT> in 'a.parquet' and ARRAY<DOUBLE> in 'b.parquet'."


def test_columns_keep_their_order(tmp_path: Path, write: Callable[..., Path]) -> None:
    write("a.parquet", z=pa.array([1]), a=pa.array([[1]]), m=pa.array(["x"]))
    assert [f"{field.name} {field.type.name}" for field in read(tmp_path).fields] == ["z BIGINT", "a ARRAY", "m STRING"]


def test_files_that_differ_are_told_apart(tmp_path: Path, write: Callable[..., Path]) -> None:
    write("a.parquet", x=pa.array([1]), y=pa.array(["x"]))
    other = write("b.parquet", x=pa.array([1.5]), y=pa.array(["x"]))
    error = refusal(tmp_path)
    assert (error.code, error.issues[0].pointer) == ("schema_mismatch", "/tables/t/path")
    assert str(error) == "The column x is BIGINT in 'a.parquet' and DOUBLE in 'b.parquet'."
    pq.write_table(pa.table({"x": [1]}), other)
    assert str(refusal(tmp_path)) == "The column y exists in 'a.parquet' but not in 'b.parquet'." + HINT
    pq.write_table(pa.table({"x": [1], "y": ["x"], "z": [1]}), other)
    assert str(refusal(tmp_path)) == "The column z exists in 'b.parquet' but not in 'a.parquet'." + HINT
    pq.write_table(pa.table({"y": ["x"], "x": [1]}), other)
    assert read(tmp_path).names == ("x", "y")


def test_the_last_of_many_files_is_looked_at(tmp_path: Path, write: Callable[..., Path]) -> None:
    for number in range(FOOTERS_COMPARED + 20):
        write(f"{number:03}.parquet", x=pa.array([1]))
    write("999.parquet", x=pa.array(["x"]))
    assert refusal(tmp_path).code == "schema_mismatch"


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1PAR1", b"x" * 100, b"PAR1" + b"\x00" * 100 + b"\xff\xff\xff\x7fPAR1", b"a,b\n1,2\n"]
)
def test_what_is_not_parquet_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x.parquet").write_bytes(content)
    error = refusal(tmp_path)
    assert error.code == "corrupt_file"
    assert str(error) == "'x.parquet' is not a Parquet file, or it is truncated or damaged."


def test_a_truncated_file_is_corrupt(tmp_path: Path, write: Callable[..., Path]) -> None:
    path = write("x.parquet", x=pa.array(range(1000)))
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) // 2, 10):
        path.write_bytes(content[:length])
        assert refusal(tmp_path).code == "corrupt_file"


def test_a_file_that_is_gone_is_unreadable(tmp_path: Path, write: Callable[..., Path]) -> None:
    path = write("x.parquet", x=pa.array([1]))
    source = TableSource.model_validate({"format": "parquet", "path": "t"})
    files = find_table_files("t", source, [tmp_path])
    path.unlink()
    with pytest.raises(SpecError) as caught:
        read_schema("t", source, files)
    assert caught.value.code == "unreadable_file"
    assert str(tmp_path) not in str(caught.value)


def test_a_forbidden_file_is_unreadable(tmp_path: Path, write: Callable[..., Path]) -> None:
    path = write("x.parquet", x=pa.array([1]))
    path.chmod(0)
    with without_privileges(path.parent):
        assert refusal(tmp_path).code == "unreadable_file"


def test_columns_that_differ_in_case_alone_are_refused(tmp_path: Path, write: Callable[..., Path]) -> None:
    write("x.parquet", a=pa.array([1]), A=pa.array([1]))
    assert refusal(tmp_path).code == "duplicate_column"


CSV: dict[str, Any] = {"format": "csv", "options": {"header": True}}


@pytest.mark.parametrize(
    ("header", "schema", "options"),
    [
        ("a,b\n", "a INT, b STRING", {}),
        ("A,b\r\n1,x\r\n", "a INT, B STRING", {}),
        ("\ufeffa,b", "a INT, b STRING", {}),
        ('"a","b, c"\n', "a INT, `b, c` STRING", {}),
        ("a;b\n", "a INT, b STRING", {"delimiter": ";"}),
        ("'a'|b\n", "a INT, b STRING", {"delimiter": "|", "quote": "'"}),
        (" a , b \n", "a INT, b STRING", {}),
        ('a,"b\nc"\n1,x\n', "a INT, `b\nc` STRING", {"multi_line": True}),
    ],
)
def test_a_header_that_fits(tmp_path: Path, header: str, schema: str, options: dict[str, Any]) -> None:
    (tmp_path / "t").write_text(header, encoding="utf-8")
    columns = read(tmp_path, **{**CSV, "options": {"header": True, **options}}, schema=schema)
    assert len(columns.fields) == 2


def test_of_several_files_the_header_of_the_first_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for number in range(3):
        (tmp_path / "t" / f"{number}.csv").write_text("a,b\n1,x\n")
    assert len(read(tmp_path, **CSV, schema="a INT, b STRING").fields) == 2
    (tmp_path / "t" / "0.csv").write_text("b,a\n")
    assert refusal(tmp_path, **CSV, schema="a INT, b STRING").code == "schema_mismatch"


@pytest.mark.parametrize("header", ["", "a\n", "b,a\n", "a,b,c\n", "1,2\n", "a;b\n", "a,x\n"])
def test_a_header_that_does_not_fit(tmp_path: Path, header: str) -> None:
    (tmp_path / "t").write_text(header)
    error = refusal(tmp_path, **CSV, schema="a INT, b STRING")
    assert (error.code, error.issues[0].pointer) == ("schema_mismatch", "/tables/t/path")


def test_files_whose_first_line_break_is_not_that_of_their_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    rows = '1,"x\ny"\r\n2,z\r\n'
    (tmp_path / "t" / "1.csv").write_bytes(f"a,b\r\n{rows}".encode())
    (tmp_path / "t" / "2.csv.gz").write_bytes(gzip.compress(b'"\n",a\n'))
    table: dict[str, Any] = {"format": "csv", "schema": "a STRING, b STRING", "options": {"multi_line": True}}
    assert len(read(tmp_path, **table).fields) == 2
    (tmp_path / "t" / "3.csv").write_bytes(rows.encode())
    error = refusal(tmp_path, **table)
    assert (error.code, error.issues[0].pointer) == ("line_breaks_differ", "/tables/t/path")
    assert "'3.csv'" in str(error)
    assert len(read(tmp_path, **{**table, "options": {}}).fields) == 2


def test_text_without_a_header_and_json_have_the_declared_columns(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"\xff\xfe 1,2,3")
    assert read(tmp_path, format="csv", schema="a INT, b STRING").names == ("a", "b")
    assert read(tmp_path, format="json", schema="a INT").names == ("a",)
    assert refusal(tmp_path, **CSV, schema="a INT").code == "corrupt_file"


def test_a_broken_schema_is_told_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    error = refusal(tmp_path, format="json", schema="a FOO")
    assert (error.code, error.issues[0].pointer) == ("invalid_schema", "/tables/t/schema")


def varint(number: int) -> bytes:
    """As Thrift's compact protocol writes it."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))


def element(name: bytes, *, children: int | None = None, physical: int = 1) -> bytes:
    """A part of a footer's schema: a group of so many `children`, or a column of the physical type of this number."""
    named = varint(len(name)) + name
    if children is not None:
        return b"\x35\x00\x18" + named + b"\x15" + varint(children * 2) + b"\x00"
    return b"\x15" + varint(physical * 2) + b"\x25\x02\x18" + named + b"\x00"


def file_of(*elements: bytes, told: int | None = None) -> bytes:
    """A Parquet file without rows and with this schema, of which the footer tells that it has `told` parts."""
    footer = b"\x15\x02\x19\xfc" + varint(told or len(elements)) + b"".join(elements) + b"\x16\x00\x19\x0c\x00"
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def group(children: int, name: bytes = b"root") -> bytes:
    return element(name, children=children)


HOSTILE = {
    "100,000 columns": (file_of(group(99_999), *(element(b"c%d" % n) for n in range(99_999))), "unsupported_construct"),
    "a million columns": (file_of(group(1_000_000), element(b"a") * 1_000_000), "corrupt_file"),
    "no column": (file_of(group(0)), "unsupported_construct"),
    "100,000 groups in each other": (file_of(group(1) * 100_000, element(b"a")), "corrupt_file"),
    "more children than there are": (file_of(group(1_000_000), element(b"a")), "corrupt_file"),
    "a list longer than its footer": (file_of(group(1), element(b"a"), told=99_999), "corrupt_file"),
    "a list without end": (file_of(group(1), element(b"a"), told=2**31 - 1), "corrupt_file"),
    "a name longer than its footer": (file_of(group(1), b"\x15\x02\x25\x02\x18" + varint(2**31 - 1)), "corrupt_file"),
    "an unknown type": (file_of(group(1), element(b"a", physical=99)), "corrupt_file"),
    "one name twice": (file_of(group(2), element(b"a"), element(b"a")), "duplicate_column"),
    "names that clash": (file_of(group(2), element(b"stra\xc3\x9fe"), element(b"STRASSE")), "duplicate_column"),
    "NUL in a name": (file_of(group(1), element(b"a\x00b")), "unsupported_construct"),
    "NUL in a nested name": (file_of(group(1), group(1, b"s"), element(b"\x00")), "unsupported_construct"),
    "half a pair in a name": (file_of(group(1), element(b"\xed\xa0\x80")), "corrupt_file"),
    "a name of a megabyte": (file_of(group(1), element(b"x" * (1 << 20))), "unsupported_construct"),
    "a footer before the beginning": (file_of(group(1), element(b"a"))[:-8] + b"\xff\xff\xff\xffPAR1", "corrupt_file"),
}


@pytest.mark.not_quick
@pytest.mark.withstands(
    "a Parquet file with a hostile schema",
    kind="attack",
    how="crafted footers: 100,000 columns, 100,000 nested groups, lists and names longer than the file, unknown "
    "types, duplicate names, U+0000 and lone surrogates in names",
    times=16,
    guaranteed="422 `corrupt_file`, `unsupported_construct` or `duplicate_column`",
)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_footer_is_refused(tmp_path: Path, name: str) -> None:
    content, code = HOSTILE[name]
    (tmp_path / "t").write_bytes(content)
    error = refusal(tmp_path)
    assert error.code == code
    assert len(str(error)) < 1000


def test_a_footer_that_is_as_long_as_its_file_is_not_read(tmp_path: Path) -> None:
    """A gigabyte, of which the disk has two blocks."""
    with (tmp_path / "t").open("wb") as file:
        file.write(b"PAR1")
        file.seek(1 << 30)
        file.write(((1 << 30) - 4).to_bytes(4, "little") + b"PAR1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = refusal(tmp_path)
    assert (error.code, str(error)) == (
        "unsupported_construct",
        "The footer of 't' has 1023 MB; at most 32. Write the table with fewer columns.",
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.withstands(
    "a damaged Parquet footer",
    kind="attack",
    how="random bytes of the footer changed, with a fixed seed",
    times=500,
    guaranteed="the file is read, or refused with an error code",
)
def test_a_footer_with_some_bytes_changed_is_read_or_refused(tmp_path: Path, write: Callable[..., Path]) -> None:
    path = write("x.parquet", a=pa.array([1]), b=pa.array(["x"]), c=pa.array([[{"d": 1}]]))
    good, dice = path.read_bytes(), random.Random(6)
    begins = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    outcomes = Counter[str]()
    for _ in range(500):
        content = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            content[dice.randrange(begins, len(good) - 8)] = dice.randrange(256)
        path.write_bytes(content)
        try:
            read(tmp_path)
        except SpecError as error:
            outcomes[error.code] += 1
        else:
            outcomes["read"] += 1
    assert outcomes["read"] > 20, outcomes
    assert outcomes["corrupt_file"] > 20, outcomes


@pytest.mark.parametrize(
    "name", ["a'b`c\"d", "a\nb", "<script>alert(1)</script>", "a.b", "\u202eb", "e\u0301", "\U0001f642"]
)
def test_odd_names_are_names(tmp_path: Path, write: Callable[..., Path], name: str) -> None:
    write("x.parquet", **{name: pa.array([1])})
    assert read(tmp_path).names == (name,)


@pytest.mark.not_quick
def test_wide_files_are_compared_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand columns of 64 files: compared each with each that would be half an hour."""
    content = file_of(group(MAX_COLUMNS), *(element(b"c%d" % n) for n in range(MAX_COLUMNS)))
    (tmp_path / "t").mkdir()
    for number in range(3):
        (tmp_path / "t" / str(number)).write_bytes(content)
    looked = 0

    def counted(schema: Schema) -> tuple[str, ...]:
        nonlocal looked
        looked += 1
        return tuple(field.name for field in schema.fields)

    monkeypatch.setattr(Schema, "names", property(counted))
    assert len(read(tmp_path).fields) == MAX_COLUMNS
    assert looked < 10
