"""Describes the types of the OpenAPI document in words, with links to the pages of fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.markdown import code, codes

REQUESTS, RESPONSES = "http-requests.md", "http-responses.md"
_PREFIX = "#/components/schemas/"
_FORMATS = {"date-time": "time (RFC 3339)", "uuid": "UUID", "binary": "bytes"}


def described_type(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Returns the type of a schema in Markdown; empty if the schema has no type."""
    if "$ref" in schema:
        return _reference(str(schema["$ref"]), document)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(dict.fromkeys(filter(None, (described_type(one, document) for one in options))))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return codes(schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return _array(schema, document)
    if kind == "object":
        values = schema.get("additionalProperties")
        inner = described_type(values, document) if isinstance(values, Mapping) else ""
        return f"map of names to {inner}" if inner else "object"
    return "".join(_scalar(str(kind), schema)) if kind else ""


def schemas_of_requests(document: Mapping[str, Any]) -> list[str]:
    """Returns the names of the schemas that bodies of requests use, in alphabetical order."""
    found: set[str] = set()
    bodies = [
        content.get("schema", {})
        for item in document["paths"].values()
        for one in item.values()
        for content in one.get("requestBody", {}).get("content", {}).values()
    ]
    waiting = [name for body in bodies for name in _references(body)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_references(document["components"]["schemas"][name]))
    return sorted(found)


def is_enum(schema: Mapping[str, Any]) -> bool:
    """Whether the schema is a list of values, which are named wherever it is used."""
    return "enum" in schema


def _reference(reference: str, document: Mapping[str, Any]) -> str:
    name = reference.removeprefix(_PREFIX)
    schema = document["components"]["schemas"][name]
    if is_enum(schema):
        return codes(schema["enum"])
    page = REQUESTS if name in schemas_of_requests(document) else RESPONSES
    return f"[{name}]({page}#{name.lower()})"


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_PREFIX)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _array(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    items = schema.get("prefixItems") or [schema.get("items", {})]
    inner = " and ".join(dict.fromkeys(described_type(one, document) or "any value" for one in items))
    most = schema.get("maxItems")
    return f"list of {inner}" + (f"; at most {most:,} items" if most and "prefixItems" not in schema else "")


def _scalar(kind: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield _FORMATS.get(str(schema.get("format")), kind) if kind == "string" else kind
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        yield f", {low:,.10g} to {high:,.10g}"
    elif low is not None:
        yield f", at least {low:,.10g}"
    elif high is not None:
        yield f", at most {high:,.10g}"
    if schema.get("maxLength"):
        yield f", at most {schema['maxLength']:,} characters"
