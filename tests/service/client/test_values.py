"""Values of Python as parameters, the job from the arguments of a call, and rows as objects of Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter

from service.client.errors import ArgumentError
from service.client.job_spec import Given, job_spec
from service.client.responses import Column
from service.client.rows import converter, python_rows
from service.client.values import parameter
from service.contract.job import JobSpec
from service.contract.parameters import ParameterValue, TypedValue
from service.contract.tables import TableSource
from service.sql.parameters import literal_of

TABLES = {"o": "orders/"}
NOON = datetime(2024, 1, 31, 12)  # noqa: DTZ001 - a TIMESTAMP_NTZ


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("it's", "it's"),
        (None, None),
        (True, True),
        (7, 7),
        (1 << 62, 1 << 62),
        (1 << 70, {"type": "DECIMAL(38,0)", "value": str(1 << 70)}),
        (1.5, 1.5),
        (Decimal("10.50"), {"type": "DECIMAL(4,2)", "value": "10.50"}),
        (Decimal("-0.001"), {"type": "DECIMAL(3,3)", "value": "-0.001"}),
        (Decimal("1E+3"), {"type": "DECIMAL(4,0)", "value": "1000"}),
        (Decimal(0), {"type": "DECIMAL(1,0)", "value": "0"}),
        (date(2024, 1, 31), {"type": "DATE", "value": "2024-01-31"}),
        (NOON, {"type": "TIMESTAMP_NTZ", "value": "2024-01-31 12:00:00.000000"}),
        (
            datetime(2024, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))),
            {"type": "TIMESTAMP", "value": "2024-01-31 10:00:00.000000Z"},
        ),
        (b"\x00\xff", {"type": "BINARY", "value": "AP8="}),
        (UUID(int=1), str(UUID(int=1))),
        (np.int64(5), 5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (pd.Timestamp("2024-01-31 12:00"), {"type": "TIMESTAMP_NTZ", "value": "2024-01-31 12:00:00.000000"}),
        (pd.NaT, None),
        (pd.NA, None),
        (TypedValue(type="SMALLINT", value=5), {"type": "SMALLINT", "value": 5}),
        ({"type": "SMALLINT", "value": 5}, {"type": "SMALLINT", "value": 5}),
    ],
)
def test_parameter(value: Any, expected: Any) -> None:
    found = parameter(value)
    assert json.loads(json.dumps(found)) == expected
    # The service accepts it.
    literal_of(TypeAdapter(ParameterValue).validate_python(found), "/parameters/v")


@pytest.mark.parametrize(
    "value", [[1], (1, 2), {1}, float("nan"), float("inf"), Decimal("NaN"), Decimal("1" * 39), object(), 1j]
)
def test_value_that_is_no_parameter(value: Any) -> None:
    with pytest.raises(ArgumentError) as raised:
        parameter(value)
    assert raised.value.code == "invalid_argument"
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Given("SELECT 1", TABLES), {"sql": "SELECT 1", "tables": {"o": {"path": "orders/"}}}),
        (
            Given("SELECT 1", {"o": "csv:a.txt", "s": "stream:clicks", "t": {"path": "b"}}, name="n", values={"d": 1}),
            {
                "sql": "SELECT 1",
                "tables": {
                    "o": {"format": "csv", "path": "a.txt"},
                    "s": {"format": "stream", "stream": "clicks"},
                    "t": {"path": "b"},
                },
                "name": "n",
                "parameters": {"d": 1},
            },
        ),
        (
            Given("SELECT 1", {"o": TableSource(format="csv", path="a")}, parameters=[1, "b"]),
            {"sql": "SELECT 1", "tables": {"o": {"format": "csv", "path": "a"}}, "parameters": [1, "b"]},
        ),
        (
            Given({"sql": "SELECT 1", "tables": {"a": {"path": "a"}}, "parameters": {"x": 1}}, TABLES, values={"y": 2}),
            {
                "sql": "SELECT 1",
                "tables": {"a": {"path": "a"}, "o": {"path": "orders/"}},
                "parameters": {"x": 1, "y": 2},
            },
        ),
        (
            Given(
                JobSpec(sql="SELECT 1", tables={"o": TableSource(format="csv", path="a")}),
                settings={"agg_phase": "AUTO"},
                others={"queue": "long"},
            ),
            {
                "sql": "SELECT 1",
                "tables": {"o": {"format": "csv", "path": "a"}},
                "settings": {"agg_phase": "AUTO"},
                "queue": "long",
            },
        ),
    ],
)
def test_job_of_arguments(given: Given, expected: Mapping[str, Any]) -> None:
    assert job_spec(given)[0] == expected


@pytest.mark.parametrize(
    "given",
    [
        Given("SELECT 1"),
        Given("SELECT 1", TABLES, parameters=[1], values={"a": 1}),
        Given("SELECT 1", TABLES, parameters={"a": 1}, values={"a": 1}),
        Given("SELECT 1", TABLES, parameters="text"),
        Given("SELECT 1", {"o": 5}),  # type: ignore[dict-item]
    ],
)
def test_arguments_that_contradict(given: Given) -> None:
    with pytest.raises(ArgumentError):
        job_spec(given)


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("BIGINT", 5, 5),
        ("DECIMAL(20,2)", "123456789012345678.90", Decimal("123456789012345678.90")),
        ("DOUBLE", "-Infinity", float("-inf")),
        ("DATE", "2024-01-31", date(2024, 1, 31)),
        ("DATE", "+12024-01-31", "+12024-01-31"),
        ("TIMESTAMP", "2024-01-31T12:00:00.500000Z", datetime(2024, 1, 31, 12, 0, 0, 500000, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", "2024-01-31T12:00:00", NOON),
        ("BINARY", "AP8=", b"\x00\xff"),
        ("ARRAY<DECIMAL(5,1)>", ["1.5", None], [Decimal("1.5"), None]),
        ("MAP<STRING, DATE>", [["a", "2024-01-31"]], {"a": date(2024, 1, 31)}),
        ("MAP<ARRAY<INT>, INT>", [[[1], 2]], [([1], 2)]),
        ("STRUCT<a: DATE, `b c`: ARRAY<BINARY>>", {"a": None, "b c": ["AA=="]}, {"a": None, "b c": [b"\x00"]}),
        ("INTERVAL DAY", "x", "x"),
        ("STRUCT<odd name: DATE>", {"odd name": "2024-01-31"}, {"odd name": "2024-01-31"}),
        ("", "x", "x"),
    ],
)
def test_value_of_a_column(type_: str, value: Any, expected: Any) -> None:
    (row,) = python_rows([Column(name="c", type=type_)], [[value]])
    assert row == {"c": expected}


@pytest.mark.parametrize("type_", ["ARRAY<", "MAP<INT>", "STRUCT<a>", "DECIMAL(", ">", "ARRAY<INT>>"])
def test_type_that_is_not_understood(type_: str) -> None:
    assert converter(type_) is None
