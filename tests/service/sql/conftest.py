"""A table with a column of every type, and Spark's own opinion about expressions over it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from service.sql.ddl import parse_schema
from service.sql.expressions.compile_expression import TableScope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {
    "bo": "BOOLEAN",
    "ti": "TINYINT",
    "sm": "SMALLINT",
    "i": "INT",
    "l": "BIGINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "dc": "DECIMAL(10,2)",
    "dw": "DECIMAL(38,10)",
    "s": "STRING",
    "bi": "BINARY",
    "dt": "DATE",
    "ts": "TIMESTAMP",
    "nz": "TIMESTAMP_NTZ",
}
DDL = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())

TypesInSpark = Callable[[Sequence[str], bool], list[str | None]]


@pytest.fixture
def every_type() -> TableScope:
    """A scope with the table `t` of COLUMNS."""
    return TableScope({"t": parse_schema(DDL, "/schema")})


@pytest.fixture(scope="session")
def types_in_spark(spark: SparkSession) -> Iterator[TypesInSpark]:
    """Gives the type of each canonical expression over `t.…` columns by Spark's analysis, None where Spark refuses.

    The second argument tells whether most of them are expected to pass, and can be analysed together.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException

    # Every refusal would be logged with the JVM's stack.
    logger = logging.getLogger("SQLQueryContextLogger")
    disabled, logger.disabled = logger.disabled, True
    frame = spark.createDataFrame([], DDL)
    frame = frame.select(*[frame[name].alias(f"t.{name}") for name in COLUMNS])

    def types(texts: Sequence[str], together: bool) -> list[str | None]:
        if not together and len(texts) != 1:
            return [type_ for text in texts for type_ in types([text], True)]
        try:
            fields = frame.selectExpr(*texts).schema.fields
        except (AnalysisException, ParseException, Py4JJavaError):
            # The last stands for an internal error of Spark's analysis.
            if len(texts) == 1:
                return [None]
            half = len(texts) // 2
            return types(texts[:half], True) + types(texts[half:], True)
        return [field.dataType.simpleString().upper() for field in fields]

    yield types
    logger.disabled = disabled
