"""Tables on disk for the Spark tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.read_options import ReadOptions, TableFormat
from service.contract.tables import TableSource
from service.data.files import TableFiles
from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    DataType,
    Field,
    Schema,
    TypeName,
)
from workers.engine.plan.nodes import Scan
from workers.engine.spark.sources import TableInput

_TYPES: dict[pa.DataType, DataType] = {
    pa.int64(): BIGINT,
    pa.int32(): INT,
    pa.float64(): DOUBLE,
    pa.string(): STRING,
    pa.bool_(): BOOLEAN,
    pa.date32(): DATE,
    pa.timestamp("us", "UTC"): TIMESTAMP,
}

_OTHER = DataType(TypeName.OTHER, text="LIST")

ParquetTable = Callable[..., TableInput]
TextTable = Callable[..., TableInput]


@pytest.fixture
def parquet_table(tmp_path: Path) -> ParquetTable:
    """Writes a table as Parquet, cut into `files` files of row groups of `group_rows` rows."""

    def write(
        table: pa.Table, *, name: str = "t", files: int = 1, group_rows: int = 1 << 20, file_name: str = "part"
    ) -> TableInput:
        directory = tmp_path / name
        directory.mkdir()
        size = -(-table.num_rows // files) if table.num_rows else 0
        paths = [directory / f"{file_name}-{number:03}.parquet" for number in range(files)]
        for number, path in enumerate(paths):
            pq.write_table(table.slice(number * size, size), path, row_group_size=group_rows)
        fields = tuple(Field(column.name, _TYPES.get(column.type, _OTHER)) for column in table.schema)
        return TableInput(
            TableSource(format=TableFormat.PARQUET, path=str(directory)), _files(name, directory, paths), Schema(fields)
        )

    return write


@pytest.fixture
def text_table(tmp_path: Path) -> TextTable:
    """Writes the given texts as the files of a CSV or JSON table of the given fields."""

    def write(
        format_: TableFormat, texts: Sequence[str], fields: Sequence[Field], *, name: str = "t", **options: object
    ) -> TableInput:
        directory = tmp_path / name
        directory.mkdir()
        paths = [directory / f"part-{number:03}.{format_.value}" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        source = TableSource(
            format=format_,
            path=str(directory),
            declared_schema=", ".join(f"{field.name} {field.type}" for field in fields),
            options=ReadOptions.model_validate(options),
        )
        return TableInput(source, _files(name, directory, paths), Schema(tuple(fields)))

    return write


@pytest.fixture
def scan_of() -> Callable[..., Scan]:
    """A scan of the named columns of a table, of all where none is named."""

    def scan(table: TableInput, alias: str = "t", *columns: str) -> Scan:
        wanted = [field for field in table.schema.fields if not columns or field.name in columns]
        return Scan(
            table.files.table,
            alias,
            tuple((Field(f"{alias}.{field.name}", field.type), field.name) for field in wanted),
        )

    return scan


def _files(name: str, directory: Path, paths: Sequence[Path]) -> TableFiles:
    return TableFiles(name, directory, tuple(paths), sum(path.stat().st_size for path in paths))
