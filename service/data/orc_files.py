"""Reads the columns of ORC files, as Spark reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import pyarrow as pa
from pyarrow import orc

from service.data.column_limits import ColumnLimitError
from service.data.orc_footer import OrcFileError, check_footer
from service.sql.types.data_types import TIMESTAMP, TIMESTAMP_NTZ, DataType, Field, Schema

_SPARK_TYPE = b"spark.sql.catalyst.type"


def open_orc(stream: BinaryIO) -> orc.ORCFile:
    """Returns the file after checking its footer. Raises OrcFileError, ColumnLimitError and OSError."""
    check_footer(stream)
    try:
        return orc.ORCFile(stream)
    except (pa.ArrowException, ValueError, RuntimeError) as error:
        raise OrcFileError("damaged") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise OrcFileError("damaged") from error


def orc_columns(stream: BinaryIO, data_type: Callable[[pa.DataType], DataType]) -> Schema:
    """Returns the columns. `data_type` converts Arrow's type of a column.

    Raises OrcFileError, ColumnLimitError and OSError.
    """
    file = open_orc(stream)
    try:
        fields = tuple(Field(field.name, _type(field, data_type)) for field in file.schema)
    except (pa.ArrowException, ValueError, RuntimeError, OSError) as error:
        # RecursionError is a RuntimeError.
        raise OrcFileError("damaged") from error
    if not fields:
        raise ColumnLimitError("has no column")
    return Schema(fields)


def _type(field: pa.Field, data_type: Callable[[pa.DataType], DataType]) -> DataType:
    # Spark stores times without a zone as numbers, with the type as an attribute.
    if (field.metadata or {}).get(_SPARK_TYPE) == b"timestamp_ntz":
        return TIMESTAMP_NTZ
    return TIMESTAMP if pa.types.is_timestamp(field.type) else data_type(field.type)
