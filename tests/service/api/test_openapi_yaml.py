"""The YAML of the OpenAPI document."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from service.api.openapi_yaml import as_yaml

SHARED = {"type": "string"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": {"type": "integer", "default": 1}}, "a: {type: integer, default: 1}\n"),
        ({"a": {"description": "x" * 110, "type": "string"}}, f"a:\n description: {'x' * 110}\n type: string\n"),
        ({"a": ["b" * 70, "c" * 70, "d"]}, f"a: [{'b' * 70}, {'c' * 70},\n d]\n"),
        ({"a": "one\ntwo"}, "a: |-\n one\n two\n"),
        ({"a": SHARED, "b": {"c": SHARED}}, "{a: {type: string}, b: {c: {type: string}}}\n"),
    ],
)
def test_forms(value: dict[str, Any], expected: str) -> None:
    text = as_yaml(value).partition("\n")[2]
    assert yaml.safe_load(text) == value
    assert text in (expected, "{" + expected.rstrip("\n") + "}\n")


def test_an_example_is_filled() -> None:
    value = {"example": {"rows": [{"name": "n" * 60, "text": "one\ntwo"}, {"name": "m" * 60}]}}
    text = as_yaml(value).partition("\n")[2]
    assert yaml.safe_load(text) == value
    assert len(text.splitlines()) <= 4
