"""Staged mini-batches: Parquet files, as Spark writes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.results.columns import arrow_schema
from service.sql.types.data_types import Field
from workers.engine.streaming.sinks.base import Staged

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
