"""Staged mini-batches as Spark writes them (Parquet files), and values of every type for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.results.columns import arrow_schema
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    Field,
    decimal,
)
from workers.engine.streaming.sinks.base import Staged

EVERY_TYPE: tuple[tuple[DataType, list[Any]], ...] = (
    (BOOLEAN, [True, False]),
    (TINYINT, [-128, 127]),
    (INT, [-(2**31), 2**31 - 1]),
    (BIGINT, [-(2**63), 2**63 - 1]),
    (FLOAT, [1.5, float("inf")]),
    (DOUBLE, [0.1, float("-inf")]),
    (decimal(38, 10), [Decimal("9" * 28 + ".0000000001"), Decimal("-1.5000000000")]),
    (STRING, ["", "ä'\"\\\n\x01"]),
    (BINARY, [b"", b"\x00\xff"]),
    (DATE, [date(1, 1, 1), date(9999, 12, 31)]),
    (TIMESTAMP, [datetime(1, 1, 2, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)]),
    (TIMESTAMP_NTZ, [datetime.fromisoformat("0001-01-01"), datetime.fromisoformat("9999-12-31T23:59:59.999999")]),
)
"""Values of every type that sinks support, including the smallest and the largest."""

_numbers = itertools.count()


def staged(directory: Path, columns: Sequence[Field], rows: Sequence[Sequence[Any]], files: int = 1) -> Staged:
    """Writes `rows` into `files` files of a new directory, in order."""
    schema = arrow_schema(columns)
    below = directory / f"stage-{next(_numbers)}"
    below.mkdir(parents=True)
    paths = []
    for number in range(files):
        part = rows[len(rows) * number // files : len(rows) * (number + 1) // files]
        arrays = [pa.array([row[index] for row in part], field.type) for index, field in enumerate(schema)]
        path = below / f"part-{number:05}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
        paths.append(path)
    return Staged(tuple(paths), len(rows), sum(path.stat().st_size for path in paths))
