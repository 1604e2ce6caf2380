"""Columns that nobody declared: what the files tell, what they leave open, and what Spark then reads."""

from __future__ import annotations

import gzip
import io
import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data import file_io, schema_inference
from service.data.files import find_stream_files
from service.data.schema_inference import FILES_READ, HEAD_BYTES, infer_schema
from service.sql.ddl import MAX_COLUMNS, schema_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def told(root: Path, files: dict[str, str], format_: str = "csv", **options: Any) -> str:
    (root / "t").mkdir(exist_ok=True)
    for name, text in files.items():
        (root / "t" / name).write_text(text)
    source = TableSource.model_validate({"format": format_, "path": "t", "options": {"header": False, **options}})
    return schema_text(infer_schema("t", source, find_stream_files("t", source, [root])).schema)


def refused(root: Path, files: dict[str, str], format_: str = "csv", **options: Any) -> str:
    with pytest.raises(SpecError) as caught:
        told(root, files, format_, **options)
    return caught.value.code


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "-20", "0", ""], "BIGINT"),
        (["9223372036854775807"], "BIGINT"),
        (["9223372036854775808"], "STRING"),
        (["007", "1"], "STRING"),
        (["1", "1.5", "-.5", "2e3"], "DOUBLE"),
        (["1234567890123456", "1.5"], "STRING"),
        (["true", "False"], "BOOLEAN"),
        (["2026-02-28", ""], "DATE"),
        (["2026-02-30"], "STRING"),
        (["2026-02-28", "2026-02-28 12:00:00"], "TIMESTAMP"),
        (["2026-02-28T12:00:00.123456Z", "2026-02-28T12:00:00+05:30"], "TIMESTAMP"),
        (["12:00:00"], "STRING"),
        (["", ""], "STRING"),
        ([" 1"], "STRING"),
    ],
)
def test_a_type_is_given_where_every_value_has_it(tmp_path: Path, values: list[str], type_: str) -> None:
    assert told(tmp_path, {"1.csv": "".join(f"x,{value}\n" for value in values)}) == f"_c0 STRING, _c1 {type_}"


def test_files_are_told_by_all_of_them_together(tmp_path: Path) -> None:
    files = {
        "1.csv": 'k;v\n"a;b";1\n',
        "2.csv": "k;v\nc;-\n",
        "3.csv": "k;v\nd;2.5\n",
        "5.csv": "",
    }
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "4.csv.gz").write_bytes(gzip.compress(b"k;v\ne;3e2\n"))
    assert told(tmp_path, files, header=True, delimiter=";", null_value="-") == "k STRING, v DOUBLE"


def test_columns_of_documents_are_those_of_all_of_them(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "at": "2026-01-01T00:00:00Z", "nested": {"a": 1}, "mixed": 1},
        {"id": None, "ok": True, "mixed": "one", "price": 2},
        {"id": 2, "price": 2.5, "list": [1], "never": None, "wide": 2**63, "of two": 1},
    ]
    lines = "\n".join(map(json.dumps, rows))
    expected = (
        "id BIGINT, at TIMESTAMP, nested STRUCT<a: BIGINT>, mixed STRING, ok BOOLEAN, price DOUBLE, "
        "list ARRAY<BIGINT>, never STRING, wide STRING, `of two` BIGINT"
    )
    assert told(tmp_path, {"1.json": lines}, "json") == expected
    assert told(tmp_path, {"1.json": json.dumps(rows, indent=1)}, "json", multi_line=True) == expected


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([{"b": {"c": [1]}}, {"b": {"c": [], "d": "x"}}], "STRUCT<b: STRUCT<c: ARRAY<BIGINT>, d: STRING>>"),
        ([[{"at": "2026-01-01"}, {"n": None}]], "ARRAY<STRUCT<at: DATE, n: STRING>>"),
        ([[[1], [2.5]]], "ARRAY<ARRAY<DOUBLE>>"),
        ([[1, "x"]], "ARRAY<STRING>"),
        ([[], [None]], "STRING"),
        ([{}], "STRING"),
        ([{"b": 1}, [1]], "STRING"),
        ([{"b": 1, "B": 2}], "STRING"),
        ([{"${env:HOME}": 1}], "STRING"),
        ([{str(number): number for number in range(201)}], "STRING"),
        ([json.loads("[" * 17 + "1" + "]" * 17)], "ARRAY<" * 16 + "STRING" + ">" * 16),
    ],
)
def test_nested_values_of_json(tmp_path: Path, values: list[Any], type_: str) -> None:
    lines = "\n".join(json.dumps({"a": value}) for value in values)
    assert told(tmp_path, {"1.json": lines}, "json") == f"a {type_}"


def test_a_sample_of_large_files_and_of_many_suffices(tmp_path: Path) -> None:
    long = "1\n" * (HEAD_BYTES // 2) + "12345\n" + "text\n"
    assert told(tmp_path, {"1.csv": long}) == "_c0 BIGINT"
    (tmp_path / "t" / "1.csv").unlink()
    many = {f"{number:03d}.csv": "1\n" for number in range(4 * FILES_READ)}
    assert told(tmp_path, {**many, "999.csv": "text\n"}) == "_c0 STRING"


def test_csv_values_over_several_lines(tmp_path: Path) -> None:
    row = '1,"two\nlines, ""2"""\n'
    headed = told(tmp_path, {"1.csv": f'id,"two\nlines"\n{row}'}, multi_line=True, header=True)
    assert headed == "id BIGINT, `two\nlines` STRING"
    assert told(tmp_path, {"1.csv": row}, multi_line=True) == "_c0 BIGINT, _c1 STRING"
    # The head ends inside a value: its row is left out, and not cut.
    assert told(tmp_path, {"1.csv": row * (HEAD_BYTES // len(row) + 2)}, multi_line=True) == "_c0 BIGINT, _c1 STRING"
    assert HEAD_BYTES % len(row) not in (0, len(row) - 1)
    assert refused(tmp_path, {"1.csv": 'id,"two\nlines"\n'}, multi_line=True, header=True) == (
        "schema_cannot_be_inferred"
    )


@pytest.mark.parametrize("blank", ["", " "])
def test_the_delimiter_is_no_blank_before_a_quote(tmp_path: Path, blank: str) -> None:
    text = f'1\t\t{blank}"x"\n2\t3\t"y"\n'
    found = told(tmp_path, {"1.csv": text}, delimiter="\t", ignore_leading_white_space=True)
    assert found == "_c0 BIGINT, _c1 BIGINT, _c2 STRING"


def test_a_quote_inside_of_a_value_is_text(tmp_path: Path) -> None:
    row = '5" pipe,"two\nlines"\n'
    assert told(tmp_path, {"1.csv": row * 3}, multi_line=True) == "_c0 STRING, _c1 STRING"
    assert told(tmp_path, {"1.csv": row * (HEAD_BYTES // len(row) + 2)}, multi_line=True) == "_c0 STRING, _c1 STRING"


@pytest.mark.parametrize(
    ("format_", "row", "ddl"), [("csv", "123456,\n", "_c0 BIGINT, _c1 STRING"), ("json", '{"a":1}\n', "a BIGINT")]
)
def test_a_large_file_with_a_byte_order_mark_is_cut_at_a_line_too(
    tmp_path: Path, format_: str, row: str, ddl: str
) -> None:
    assert (HEAD_BYTES + 1 - len("\ufeff".encode())) % len(row) == 6, "what is read must end with a piece of a line"
    assert told(tmp_path, {"1": "\ufeff" + row * (HEAD_BYTES // len(row) + 2)}, format_) == ddl


_MANY = [{"a": number} for number in range(HEAD_BYTES // 6)]


@pytest.mark.parametrize(
    ("format_", "text", "what"),
    [
        ("csv", "1," * HEAD_BYTES, "begins with a line"),
        ("json", json.dumps({"a": _MANY}), "is one JSON document"),
        ("json", json.dumps({"a": _MANY}, indent=1), "is one JSON document"),
        ("json", json.dumps([{"a": _MANY}]), "begins with a JSON document"),
    ],
    ids=["line", "document in a line", "document in lines", "element of an array"],
)
def test_what_is_too_long_to_be_told_by_its_beginning_is_named(
    tmp_path: Path, format_: str, text: str, what: str
) -> None:
    with pytest.raises(SpecError) as caught:
        told(tmp_path, {"1": "", "2": text}, format_, multi_line=format_ == "json")
    (issue,) = caught.value.issues
    assert issue.code == "schema_cannot_be_inferred"
    assert issue.detail == f"'2' {what} of more than 256 KB. Declare the table's 'schema'."


@pytest.mark.parametrize("indent", [None, 1])
def test_the_first_elements_of_a_long_array_suffice(tmp_path: Path, indent: int | None) -> None:
    assert told(tmp_path, {"1": json.dumps(_MANY, indent=indent)}, "json", multi_line=True) == "a BIGINT"
    assert told(tmp_path, {"1": json.dumps(_MANY, indent=indent)}, "json") == "a BIGINT"


@pytest.mark.parametrize(("option", "value"), [("delimiter", "§"), ("quote", "«")])
def test_other_than_ascii_columns_have_to_be_declared(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(SpecError) as caught:
        told(tmp_path, {"1.csv": "1§2\n"}, **{option: value})
    (issue,) = caught.value.issues
    assert (issue.code, issue.pointer) == ("schema_cannot_be_inferred", f"/tables/t/options/{option}")


@pytest.mark.parametrize(
    ("format_", "text"),
    [("csv", "," * MAX_COLUMNS + "\n"), ("json", json.dumps({f"c{number}": 1 for number in range(MAX_COLUMNS + 1)}))],
)
def test_too_many_columns_are_refused_before_their_values_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, text: str
) -> None:
    for reads_values in ("_cells", "_type_of_texts", "_check"):
        monkeypatch.delattr(schema_inference, reads_values)
    assert refused(tmp_path, {"1": text}, format_) == "schema_cannot_be_inferred"


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({}, "schema_cannot_be_inferred"),
        ({"1.csv": "a,b\n"}, "schema_cannot_be_inferred"),
        ({"1.csv": "a,b\n1,2,3\n"}, "corrupt_file"),
        ({"1.csv": "a,b\n1,2\n", "2.csv": "a,c\n1,2\n"}, "schema_mismatch"),
        ({"1.csv": "a,A\n1,2\n"}, "duplicate_column"),
    ],
)
def test_what_does_not_make_sense_is_refused(tmp_path: Path, files: dict[str, str], code: str) -> None:
    assert refused(tmp_path, files, header=True) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "corrupt_file"),
        ("1", "corrupt_file"),
        ('{"a":' + "[" * 100_000, "corrupt_file"),
        ('{"a":' * 40_000 + "1" + "}" * 40_000, "corrupt_file"),
        ('{"a":' + "9" * 200_000 + "}", "corrupt_file"),
        ('{"\\ud800": 1}', "schema_cannot_be_inferred"),
        ('{"a\\u0000b": 1}', "schema_cannot_be_inferred"),
        ('{"a":1,"A":2}', "duplicate_column"),
    ],
)
def test_documents_that_are_no_rows_are_refused(tmp_path: Path, text: str, code: str) -> None:
    assert refused(tmp_path, {"1.json": text}, "json") == code


def test_halves_of_surrogate_pairs_are_text(tmp_path: Path) -> None:
    assert told(tmp_path, {"1": '{"a": "\\ud83d", "b": "2026-01-01"}\n'}, "json") == "a STRING, b DATE"


LARGE = 300 << 20

ZEROS = gzip.compress(bytes(LARGE // 3), 1) * 3
_CANNOT = "schema_cannot_be_inferred"
_TYPED = "_c0 STRING, _c1 STRING"

BOMBS: dict[str, tuple[str, bytes, int, bytes, tuple[str, str]]] = {
    "a document in one line": ("json", b'{"a":"', LARGE, b'"}', (_CANNOT, _CANNOT)),
    "a row in one line": ("csv", b"a,b,", LARGE, b"\n", (_CANNOT, _CANNOT)),
    "a row without an end": ("csv", b"a,b\n1,", LARGE, b"", (_TYPED, _TYPED)),
    "250,000 columns": ("csv", b"," * 250_000, 0, b"\n", (_CANNOT, _CANNOT)),
    "20,000 keys": ("json", b"".join(b'{"k%d":1}\n' % n for n in range(20_000)), 0, b"", (_CANNOT, "corrupt_file")),
    "zeros, packed": ("csv.gz", ZEROS, 0, b"", (_CANNOT, _CANNOT)),
    "the same under another name": ("csv", ZEROS, 0, b"", ("corrupt_file", "corrupt_file")),
}
"""Ending, beginning, size of a hole, end, and what comes of it: without `multi_line`, and with it."""


@pytest.mark.withstands(
    "Decompression and size bombs in CSV and JSON",
    kind="attack",
    how="a line of 300 MB, 250,000 columns, 20,000 keys, compressed zeros, deep nesting, and numbers of 200,000 digits",
    times=14,
    guaranteed="the file is refused with an error code, or its types are inferred from its first 256 KB; nothing is "
    "decompressed beyond that",
)
@pytest.mark.parametrize("multi_line", [False, True])
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_told_by_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, multi_line: bool
) -> None:
    ending, start, hole, end, expected = BOMBS[name]
    read = 0

    class Counted(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes | Any:
            nonlocal read
            data = super().read(size)
            read += len(data or b"")
            return data

    monkeypatch.setattr(file_io, "open_without_links", lambda path: Counted(path))
    (tmp_path / "t").mkdir()
    with (tmp_path / "t" / f"x.{ending}").open("wb") as file:
        file.write(start)
        file.seek(hole, 1)
        file.write(end)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if expected[multi_line] == _TYPED:
        assert told(tmp_path, {}, ending, multi_line=multi_line) == _TYPED
    else:
        assert refused(tmp_path, {}, ending.removesuffix(".gz"), multi_line=multi_line) == expected[multi_line]
    assert read <= HEAD_BYTES + 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.spark
@pytest.mark.parametrize("format_", ["csv", "json"])
def test_spark_reads_what_was_found(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    columns: dict[str, list[Any]] = {
        "i": [1, -9223372036854775808, None],
        "d": [1.5, 2000.0, None],
        "b": [True, False, None],
        "day": ["2026-02-28", "0999-12-31", None],
        "at": ["2026-02-28T12:00:00.123456Z", "2026-02-28 12:00:00", "2026-02-28T12:00:00+05:30"],
        "s": ["007", "12:00", "9223372036854775808"],
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    cells = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    text = "\n".join(map(json.dumps, rows) if format_ == "json" else cells)
    ddl = told(tmp_path, {"1": text}, format_)
    assert [part.split()[1] for part in ddl.split(", ")] == [
        "BIGINT",
        "DOUBLE",
        "BOOLEAN",
        "DATE",
        "TIMESTAMP",
        "STRING",
    ]
    found = spark.read.format(format_).schema(ddl).option("mode", "FAILFAST").load(str(tmp_path / "t")).collect()
    as_text = [[None if value is None else str(value) for value in row] for row in found]
    assert [row[:3] for row in found] == [tuple(row.values())[:3] for row in rows]
    assert [row[3] for row in as_text] == columns["day"]
    assert all(row[4] is not None for row in as_text)
    assert [row[5] for row in as_text] == columns["s"]
