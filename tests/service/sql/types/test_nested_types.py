"""The types of expressions over arrays, maps and structures against Spark."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.contract.problems import SpecError
from service.sql.ddl import parse_schema
from service.sql.expressions.compile_expression import TableScope, compile_expression
from service.sql.types.document_functions import DOCUMENT_GROUPS
from service.sql.types.nested_functions import NESTED_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DDL = (
    "a ARRAY<INT>, b ARRAY<BIGINT>, t ARRAY<STRING>, aa ARRAY<ARRAY<INT>>, s STRUCT<p: INT, q: STRING>, "
    "ls ARRAY<STRUCT<p: INT, q: DECIMAL(10,2)>>, m MAP<STRING, INT>, k MAP<INT, STRUCT<p: DATE>>, i INT, l BIGINT, "
    "x STRING, d DATE, f DOUBLE, am ARRAY<MAP<STRING, INT>>, v ARRAY<FLOAT>"
)
GROUPS = (*NESTED_GROUPS.values(), *DOCUMENT_GROUPS.values())
_PARTS = (Path(__file__).parent / "nested_expressions.txt").read_text().split("# ")[1:]
ACCEPTED, REFUSED = (part.splitlines()[1:] for part in _PARTS)


@pytest.fixture
def scope() -> TableScope:
    return TableScope({"t": parse_schema(DDL, "/schema")})


def in_spark(spark: SparkSession, sql: str) -> str | None:
    from pyspark.errors import AnalysisException, ParseException

    names = parse_schema(DDL, "/").names
    frame = spark.createDataFrame([], DDL)
    try:
        field = frame.select(*[frame[name].alias(f"t.{name}") for name in names]).selectExpr(sql).schema.fields[0]
    except (AnalysisException, ParseException):
        return None
    return str(field.dataType.simpleString()).upper()


@pytest.mark.spark
def test_types_are_those_of_spark(spark: SparkSession, scope: TableScope) -> None:
    wrong = []
    for text in ACCEPTED:
        scalar = compile_expression(text, scope, "/x")
        found = in_spark(spark, scalar.sql)
        claimed = str(scalar.type).upper().replace(": ", ":").replace(", ", ",").replace("`", "")
        if found is None or (scalar.type is not None and claimed != found):
            wrong.append((text, scalar.sql, claimed, found))
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.spark
def test_what_is_refused_is_refused_by_spark(spark: SparkSession, scope: TableScope) -> None:
    logger = logging.getLogger("SQLQueryContextLogger")
    disabled, logger.disabled = logger.disabled, True
    names = "|".join(parse_schema(DDL, "/").names)
    accepted = {}
    for text in REFUSED:
        with pytest.raises(SpecError):
            compile_expression(text, scope, "/x")
        found = in_spark(spark, re.sub(rf"(?<![\w'.])({names})(?![\w'(])", r"`t.\1`", text))
        if found is not None:
            accepted[text] = found
    logger.disabled = disabled
    assert accepted == {}


def test_every_function_is_called() -> None:
    assert [name for group in GROUPS for name in group if not any(f"{name}(" in text for text in ACCEPTED)] == []
