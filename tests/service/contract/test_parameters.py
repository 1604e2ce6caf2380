"""The stored form of parameters, which no JSON store or client changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.job import JobSpec
from service.sql.expressions.nodes import Expression
from service.sql.parameters import literal_of

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.builds(lambda value: {"type": "DOUBLE", "value": value}, st.floats(allow_nan=False, allow_infinity=False)),
)


def job(parameters: Any) -> JobSpec:
    tables = {"t": {"format": "parquet", "path": "t/"}}
    return JobSpec.model_validate({"tables": tables, "sql": "SELECT 1 FROM t", "parameters": parameters})


def literals(parameters: Any) -> list[Expression]:
    found = job(parameters).parameters
    return [literal_of(value, "/x") for value in (found.values() if isinstance(found, dict) else found or ())]


def as_jsonb(value: Any) -> Any:
    """What PostgreSQL makes of a number: it has no exponents and no negative zero, but keeps the digits."""
    if isinstance(value, float):
        if value == 0:
            return 0.0
        return int(value) if "e+" in repr(value) else value
    if isinstance(value, dict):
        return {name: as_jsonb(inner) for name, inner in value.items()}
    return [as_jsonb(inner) for inner in value] if isinstance(value, list) else value


def as_javascript(value: Any) -> Any:
    """What a browser posts again: all its numbers are doubles, and whole ones have no point."""
    if isinstance(value, dict):
        return {name: as_javascript(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_javascript(inner) for inner in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if float(value).is_integer() and abs(value) < 1e21 else float(value)


@given(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_every_store_and_client_keeps_the_literals(parameters: dict[str, Any]) -> None:
    stored = job(parameters).stored().get("parameters", {})
    for read in (json.loads(json.dumps(stored)), as_jsonb(stored), as_javascript(stored)):
        assert literals(read) == literals(parameters)


def test_the_stored_form() -> None:
    stored = job([1, True, None, "x", 1.0, 1e22, -0.0, 1 << 60, {"type": "date", "value": "2024-01-31"}]).stored()
    assert stored["parameters"] == [
        1,
        True,
        None,
        "x",
        {"type": "DOUBLE", "value": 1.0},
        {"type": "DOUBLE", "value": "1e+22"},
        {"type": "DOUBLE", "value": "-0.0"},
        {"type": "BIGINT", "value": str(1 << 60)},
        {"type": "date", "value": "2024-01-31"},
    ]


@pytest.mark.parametrize("nothing", [None, {}, []])
def test_no_parameters_are_not_stored(nothing: object) -> None:
    assert "parameters" not in job(nothing).stored()
