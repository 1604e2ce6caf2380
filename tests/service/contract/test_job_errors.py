"""The declared codes of errors in jobs are those that the code raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic_core.core_schema import ErrorType

from service.contract.errors import ServiceError
from service.contract.job_errors import GROUPS

ROOT = Path(__file__).parents[3]
RAISING = {
    *("SpecError.of", "Problem.of", "PydanticCustomError", "Issue", "Fault", "Refusal", "invalid_rows"),
    *("source.error", "self.source.error", "self._source.error", "self._error"),
}
"""Calls with a code as their first string, or as `code`."""
PLACES = {"Fault": 2}
"""The number of arguments up to the code, where it is not the first one."""
TABLES = {"_CONDITIONS", "_FILE_SYSTEM_CODES", "_KINDS_REFUSED"}
"""Dictionaries in which codes are keys or values."""
CONSTANTS = {"CODE", "SCHEMA_REQUIRED", "code"}
"""Names of constants with a code."""
ELSEWHERE = {
    "setting": "a variable of the environment",
    "invalid_plan": "a defect of a rule; a client gets internal_error",
    "fence_lost": "an attempt that another one has replaced; a client does not get it",
    "stream_over": "a stream without further rows; a client does not get it",
    "duplicate_key": "an issue of `invalid_rows`",
    "stream_differs": "an issue of the error of that name",
}
"""Codes that are raised like those of jobs."""


def raised() -> Iterator[str]:
    for package in ("service", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "job_errors.py":
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    yield from codes_of(node)


def codes_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func, arguments, keywords) if ast.unparse(func) in RAISING:
            given = [keyword.value for keyword in keywords if keyword.arg == "code"] or arguments[
                : PLACES.get(ast.unparse(func), 1)
            ]
            texts = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (text for text in texts if text.isidentifier())
        case ast.Assign([ast.Name(name)], ast.Dict(keys, values)) if name in TABLES:
            for one in (*keys, *values):
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and "." not in one.value:
                    yield one.value
        case ast.Assign([ast.Name(name)], ast.Constant(str(value))) if name in CONSTANTS:
            yield value
        case ast.AnnAssign(ast.Name(name), _, ast.Constant(str(value))) if name in CONSTANTS:
            yield value
        case ast.Return(ast.Constant(str(value))) if value.isidentifier() and "_" in value:
            yield value  # of `workers.engine.spark.error_mapping`
        case _:
            return


@pytest.mark.not_quick
def test_every_code_is_declared_and_raised() -> None:
    declared = {one.code for group in GROUPS.values() for one in group}
    refusals = {error.code for error in ServiceError.with_codes()}
    known = declared | refusals | set(ELSEWHERE) | set(get_args(ErrorType))
    found = set(raised())
    assert declared <= found
    assert found <= known
