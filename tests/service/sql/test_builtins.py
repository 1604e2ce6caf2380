"""Every function of the pinned Spark has a class, so that a new version of Spark adds none unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from service.sql.builtins import CLOCKS, OPERATORS, FunctionClass, class_of
from service.sql.expressions.calls import function_named
from service.sql.refusals import EXCLUDED, unknown_function
from service.sql.types.functions import FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_every_function_of_spark_has_a_class(spark: SparkSession) -> None:
    names = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    assert len(names) > 500
    assert [name for name in names if class_of(name) is None] == []


@pytest.mark.spark
def test_spark_has_every_function_that_is_supported(spark: SparkSession) -> None:
    names = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    # Syntax of Spark that its list of functions leaves out.
    assert set(FUNCTIONS) - names == {"timestampadd", "timestampdiff"}
    assert OPERATORS - names == set()


def test_no_function_has_two_classes() -> None:
    supported = {*FUNCTIONS, *CLOCKS, *OPERATORS}
    assert [name for name in EXCLUDED if name in supported or function_named(name)] == []


def test_a_message_says_why_a_function_is_excluded() -> None:
    assert class_of("java_method") is FunctionClass.EXCLUDED
    detail, suggestions = unknown_function("java_method", ())
    assert detail == f"The function java_method {EXCLUDED['java_method']}"
    assert suggestions == ()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("upper", FunctionClass.DETERMINISTIC),
        ("like", FunctionClass.DETERMINISTIC),
        ("now", FunctionClass.CLOCK),
        ("sum", FunctionClass.AGGREGATE),
        ("collect_list", FunctionClass.ORDER_DEPENDENT),
        ("percentile_approx", FunctionClass.APPROXIMATE),
        ("row_number", FunctionClass.WINDOW),
        ("||", FunctionClass.OPERATOR),
        ("rand", FunctionClass.EXCLUDED),
        ("no_such_function", None),
    ],
)
def test_class(name: str, kind: FunctionClass | None) -> None:
    assert class_of(name) is kind
