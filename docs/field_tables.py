"""Sections of the fields in bodies of requests and responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from docs.markdown import code, codes, sentence, table
from docs.operation_tables import document
from docs.schemas import described_type, is_enum, schemas_of_requests

_MAX_DEFAULT = 40
"""A longer default is not shown: it is that of an object, whose own section has the defaults of its fields."""


def requests() -> str:
    """Returns the sections of the schemas that bodies of requests use, that of a job first."""
    names = schemas_of_requests(document())
    return _sections(sorted(names, key=lambda name: (name != "JobSpec", name)))


def responses() -> str:
    """Returns the sections of all other schemas."""
    known = set(schemas_of_requests(document()))
    return _sections([name for name in document()["components"]["schemas"] if name not in known])


def _sections(names: list[str]) -> str:
    schemas = document()["components"]["schemas"]
    return "\n\n".join(part for name in names if not is_enum(schemas[name]) for part in _section(name, schemas[name]))


def _section(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    if schema.get("description"):
        yield "\n\n".join(sentence(part) for part in schema["description"].split("\n\n"))
    if "oneOf" in schema:
        yield f"{described_type(schema, document())}."
    required = schema.get("required", ())
    rows = [_row(field, given, field in required) for field, given in schema.get("properties", {}).items()]
    if rows:
        yield table(("Field", "Type", "Default", "Meaning"), rows)


def _row(name: str, given: Mapping[str, Any], required: bool) -> tuple[str, str, str, str]:
    aliases = given.get("x-aliases", ())
    also = f" Also: {codes(aliases)}." if aliases else ""
    return code(name), described_type(given, document()), _default(given, required), _meaning(given) + also


def _default(given: Mapping[str, Any], required: bool) -> str:
    if required and "default" not in given:
        return "required"
    text = json.dumps(given["default"], ensure_ascii=False) if given.get("default") is not None else ""
    return code(text) if len(text) <= _MAX_DEFAULT else ""


def _meaning(given: Mapping[str, Any]) -> str:
    texts = [given.get("description", ""), *(one.get("description", "") for one in given.get("anyOf", ()))]
    if "$ref" in given:
        name = given["$ref"].rpartition("/")[2]
        texts.append(document()["components"]["schemas"][name].get("description", "").partition("\n\n")[0])
    return sentence(next(filter(None, texts), ""))


TABLES: dict[str, Callable[[], str]] = {"fields of requests": requests, "fields of responses": responses}
"""The tables of this module, by name."""
