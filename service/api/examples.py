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
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("examples.json")
"""The file of the examples."""

_ENTRIES = 2
"""The number of entries of a map in a short example."""
_TEXT_CHARACTERS = 160
"""The number of characters of a text with several lines in a short example; further lines are left out."""
_OPTIONAL_CHARACTERS = 180
"""The number of characters of JSON above which a short example leaves out an optional member."""

Schema = Mapping[str, Any]
Schemas = Mapping[str, Schema]
"""The named schemas of an OpenAPI document."""


@cache
def load_examples() -> dict[str, Any]:
    """Returns all recorded examples, complete, in the form of the module's docstring. Callers do not change them."""
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def add_examples(operations: Sequence[dict[str, Any]], schemas: Schemas) -> None:
    """Adds short examples to the bodies of the operations of an OpenAPI document: of each, the first one recorded.

    An operation with an example of its request has none of its response if another one has an example of that schema.
    """
    recorded = load_examples()["operations"]
    shown: set[str] = set()
    # Operations without a request body come first: they show the schema of their response.
    for operation in sorted(operations, key=lambda operation: "requestBody" in operation):
        examples = recorded.get(operation["operationId"], {})
        for media_type, named in examples.get("requests", {}).items():
            operation["requestBody"]["content"][media_type]["example"] = next(iter(named.values()))["value"]
        for status, bodies in examples.get("responses", {}).items():
            for media_type, value in bodies.items():
                media = operation["responses"][status]["content"][media_type]
                reference = media["schema"].get("$ref", "")
                if "requestBody" not in operation or reference not in shown:
                    media["example"] = shortened(value, media["schema"], schemas)
                shown.add(reference)


def shortened(value: Any, schema: Schema, schemas: Schemas) -> Any:
    """Returns a short form of an example, which is valid for `schema` if `value` is.

    Leaves out optional members that are null, have their default, are long or have several lines; all objects of a list
    except the first; all entries of a map except two; and the later lines of long texts.
    """
    schema = _resolved(value, schema, schemas)
    if isinstance(value, dict):
        return _shortened_object(value, schema, schemas)
    if isinstance(value, list):
        kept = value[:1] if value and isinstance(value[0], dict) else value
        return [shortened(item, schema.get("items", {}), schemas) for item in kept]
    return _first_lines(value) if isinstance(value, str) else value


def _shortened_object(value: dict[str, Any], schema: Schema, schemas: Schemas) -> dict[str, Any]:
    members: Schemas | None = schema.get("properties")
    if members is None:
        other = schema.get("additionalProperties")
        inner = other if isinstance(other, dict) else {}
        return {name: shortened(entry, inner, schemas) for name, entry in list(value.items())[:_ENTRIES]}
    required = schema.get("required", ())
    short = {
        name: shortened(member, members.get(name, {}), schemas)
        for name, member in value.items()
        if name in required or not _is_default(member, members.get(name, {}), schemas)
    }
    return {
        name: member
        for name, member in short.items()
        if name in required or (len(json.dumps(member)) <= _OPTIONAL_CHARACTERS and not _has_lines(member))
    }


def _resolved(value: Any, schema: Schema, schemas: Schemas) -> Schema:
    """Follows references and joins the parts of `allOf`; takes the first alternative that declares all of `value`."""
    if "$ref" in schema:
        return _resolved(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "allOf" in schema:
        parts = [_resolved(value, part, schemas) for part in schema["allOf"]]
        return {
            "properties": {name: member for part in parts for name, member in part.get("properties", {}).items()},
            "required": [name for part in parts for name in part.get("required", ())],
        }
    for alternative in schema.get("anyOf", schema.get("oneOf", ())):
        found = _resolved(value, alternative, schemas)
        if isinstance(value, dict) and found.get("type", "object") == "object":
            if set(found.get("required", ())) <= set(value) <= set(found.get("properties", value)):
                return found
        elif isinstance(value, list) and found.get("type") == "array":
            return found
    return schema


def _is_default(value: Any, schema: Schema, schemas: Schemas) -> bool:
    """Whether an optional member is null or the default of its schema, or all of its members are."""
    if value is None or ("default" in schema and value == schema["default"]):
        return True
    found = _resolved(value, schema, schemas)
    members: Schemas = found.get("properties", {})
    return (
        isinstance(value, dict)
        and bool(members)
        and not found.get("required")
        and all(_is_default(member, members.get(name, {}), schemas) for name, member in value.items())
    )


def _has_lines(value: Any) -> bool:
    return isinstance(value, str) and "\n" in value


def _first_lines(text: str) -> str:
    """Returns the lines of a text that end within `_TEXT_CHARACTERS`, at least one; a text of one line unchanged."""
    end = text.rfind("\n", 0, _TEXT_CHARACTERS) + 1 or text.find("\n") + 1
    return text if len(text) <= _TEXT_CHARACTERS or not end else text[:end]
