"""Shorter forms of the schemas that FastAPI and pydantic derive, with the same meaning.

    titles          removed: they repeat the names of schemas and of their members
    nullable        anyOf: [{type: string}, {type: 'null'}]  becomes  type: [string, 'null']
    inner models    moved to `components.schemas`, under their title
    equal members   moved to `components.schemas` if they are long, under the name of the member
    common members  of a model and its base, moved to a schema to which both refer
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_VALUES = ("default", "example", "examples", "const", "enum")
"""The keywords whose values are not schemas."""
_LONG = 300
"""The number of characters of JSON above which a schema is long."""
_NULL = {"type": "null"}
_BASES = {"JobFields": ("JobSummary", "Job"), "ApiKeyFields": ("ApiKey", "IssuedKey")}
"""Each schema of common members, with the two that have them: a base model and a model derived from it."""


def compact_schemas(document: dict[str, Any]) -> None:
    """Shortens all schemas of an OpenAPI document, those of its operations too."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    _share_inner_models(schemas)
    for node in list(_nodes(document["paths"])) + list(_nodes(schemas)):
        if isinstance(node.get("title"), str):
            del node["title"]
        _join_null(node)
    _share_long_members(schemas)
    for name, (base, derived) in _BASES.items():
        _share_members(schemas, name, base, derived)


def refer(components: dict[str, Any], kind: str, name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Adds the value to the components of a kind, and returns a reference to it.

    Raises ValueError if there is another component of this name.
    """
    if components.setdefault(name, value) != value:
        raise ValueError(f"two different {kind} of the OpenAPI document have the name {name}")
    return {"$ref": f"#/components/{kind}/{name}"}


def _nodes(value: Any) -> Iterator[Schema]:
    """Yields `value` and all objects in it, except values of the API."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in _VALUES or isinstance(inner, dict) and "type" in inner:
                yield from _nodes(inner)
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


def _share_inner_models(schemas: dict[str, Schema]) -> None:
    for schema in list(schemas.values()):
        for node in list(_nodes(schema)):
            for alternative in node.get("anyOf", ()):
                if isinstance(alternative.get("properties"), dict) and "title" in alternative:
                    model = dict(alternative)
                    alternative.clear()
                    alternative.update(refer(schemas, "schemas", model["title"], model))


def _join_null(schema: Schema) -> None:
    alternatives = schema.get("anyOf")
    if not isinstance(alternatives, list) or len(alternatives) != 2 or alternatives[1] != _NULL:  # noqa: PLR2004
        return
    first = alternatives[0]
    if isinstance(first.get("type"), str) and not {"enum", "const"} & first.keys() and not first.keys() & schema.keys():
        del schema["anyOf"]
        others = dict(schema)
        schema.clear()
        schema.update({**first, "type": [first["type"], "null"], **others})


def _share_long_members(schemas: dict[str, Schema]) -> None:
    members = [
        (schema["properties"], name) for schema in list(schemas.values()) for name in schema.get("properties", ())
    ]
    counts = Counter(json.dumps(properties[name]) for properties, name in members)
    for properties, name in members:
        text = json.dumps(properties[name])
        if len(text) > _LONG and counts[text] > 1:
            component = "".join(part.capitalize() for part in name.split("_"))
            properties[name] = refer(schemas, "schemas", component, properties[name])


def _share_members(schemas: dict[str, Schema], name: str, base: str, derived: str) -> None:
    """Moves the members of `base` to a schema `name`; `base` and `derived` refer to it and stay closed."""
    common = schemas[base]
    schemas[name] = {
        "description": f"The members that {base} and {derived} have in common.",
        **{keyword: common[keyword] for keyword in ("type", "properties", "required")},
    }
    for model in (base, derived):
        schema = schemas[model]
        own = {key: value for key, value in schema["properties"].items() if key not in common["properties"]}
        changed = {key: value for key, value in common["properties"].items() if schema["properties"][key] != value}
        if changed:
            raise ValueError(f"{model} declares {', '.join(changed)} in another way than {base}")
        schemas[model] = {
            "description": schema["description"],
            "allOf": [{"$ref": f"#/components/schemas/{name}"}],
            **({"properties": own, "required": [key for key in schema["required"] if key in own]} if own else {}),
            "unevaluatedProperties": False,
        }
