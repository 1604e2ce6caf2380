"""The recorded examples of requests and responses, and their short forms for the OpenAPI document.

    examples.json
        operations: operation ->
            requests     media type -> name -> {summary, value}
            responses    status -> media type -> value
        problems: code -> the members of a problem with that code, in addition to those of its class

`python -m tests.clients.record_examples` records them from a running service, on the demo's flights. `load_examples`
returns all of them, as the documentation shows them; `add_examples` adds a short one to each body of an operation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("examples.json")
"""The file of the examples."""

_ITEMS = 1
"""The number of objects of a list in a short example."""
_CHARACTERS = 160
"""The number of characters of a text with several lines in a short example; further lines are left out."""


@cache
def load_examples() -> dict[str, Any]:
    """Returns all recorded examples, complete, in the form that the module's docstring describes. Do not change them."""
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def add_examples(operation: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    """Adds the first recorded example of each body to an operation of an OpenAPI document, in its short form.

    `schemas` are the document's named schemas.
    """
    recorded = load_examples()["operations"].get(operation["operationId"], {})
    for media_type, examples in recorded.get("requests", {}).items():
        media = operation["requestBody"]["content"][media_type]
        media["example"] = next(iter(examples.values()))["value"]
    for status, bodies in recorded.get("responses", {}).items():
        for media_type, value in bodies.items():
            media = operation["responses"][status]["content"][media_type]
            if recorded.get("requests") and _is_shown_elsewhere(media["schema"]): continue
            media["example"] = shortened(value, media["schema"], schemas)


def shortened(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Returns a short form of an example, which is valid for `schema` if `value` is.

    Leaves out optional members that are null or have their default, all objects of a list except the first, and the
    later lines of long texts.
    """
    schema = _fitting(value, schema, schemas)
    if isinstance(value, dict):
        declared = schema.get("properties", {})
        other = schema.get("additionalProperties")
        required = schema.get("required", () if declared else value)
        return {
            name: shortened(member, declared.get(name, other if isinstance(other, dict) else {}), schemas)
            for name, member in value.items()
            if name in required or not _is_default(member, declared.get(name, {}), schemas)
        }
    if isinstance(value, list):
        kept = value[:_ITEMS] if value and isinstance(value[0], dict) else value
        return [shortened(item, schema.get("items", {}), schemas) for item in kept]
    return _first_lines(value) if isinstance(value, str) else value


def _fitting(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolves a reference; of several alternatives, returns the first that declares all members of `value`."""
    if "$ref" in schema:
        return _fitting(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for alternative in schema.get("anyOf", schema.get("oneOf", ())):
        found = _fitting(value, alternative, schemas)
        if isinstance(value, dict):
            fits = set(found.get("required", ())) <= set(value) <= set(found.get("properties", value))
            if fits and found.get("type", "object") == "object":
                return found
        elif isinstance(value, list) and found.get("type") == "array":
            return found
    return schema


def _is_default(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> bool:
    """Whether a member may be left out: it is null or the default of its schema, or all its members are."""
    if value is None or ("default" in schema and value == schema["default"]):
        return True
    found = _fitting(value, schema, schemas)
    members = found.get("properties")
    return (
        isinstance(value, dict)
        and bool(members)
        and not found.get("required")
        and all(_is_default(member, members.get(name, {}), schemas) for name, member in value.items())
    )


def _first_lines(text: str) -> str:
    """Returns the lines of a text that end within `_CHARACTERS`, at least the first; a text of one line unchanged."""
    end = text.rfind("\n", 0, _CHARACTERS) + 1 or text.find("\n") + 1
    return text if len(text) <= _CHARACTERS or not end else text[:end]


def _is_shown_elsewhere(schema: Mapping[str, Any]) -> bool:
    return schema.get("$ref", "").rpartition("/")[2] in ("Job", "PlanReport", "Stream")
