"""Results as tables of polars, pandas and pyarrow, read from a file in Arrow's stream format. The types are exact.

The packages are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

from .errors import MissingPackageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


def polars_frame(file: IO[bytes]) -> pl.DataFrame:
    """Returns the rows as a DataFrame of polars. Raises MissingPackageError."""
    polars = _imported("polars", "polars")
    file.seek(0)
    frame: pl.DataFrame = polars.read_ipc_stream(file)
    return frame


def arrow_table(file: IO[bytes]) -> pa.Table:
    """Returns the rows as a table of pyarrow. Raises MissingPackageError."""
    with _reader(file, "arrow") as reader:
        return reader.read_all()


def pandas_frame(file: IO[bytes], options: dict[str, Any]) -> pd.DataFrame:
    """Returns the rows as a DataFrame of pandas; the options are those of `pyarrow.Table.to_pandas`. Raises
    MissingPackageError.
    """
    _imported("pandas", "pandas")
    with _reader(file, "pandas") as reader:
        frame: pd.DataFrame = reader.read_pandas(**options)
    return frame


def arrow_batches(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches of pyarrow; only one batch is in memory. Raises MissingPackageError."""
    with _reader(file, "arrow") as reader:
        yield from reader


def _reader(file: IO[bytes], extra: str) -> Any:
    _imported("pyarrow", extra)
    ipc = import_module("pyarrow.ipc")
    file.seek(0)
    return ipc.open_stream(file)


def _imported(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise MissingPackageError(
            f"the package {package} is not installed", f"Install it: pip install 'evenkeel-client[{extra}]'"
        ) from None
