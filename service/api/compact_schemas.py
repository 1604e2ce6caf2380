"""Shorter forms of the schemas that FastAPI and pydantic derive, with the same meaning.

titles           are removed where they repeat the name of their schema or member
nullable types   anyOf: [{type: string}, {type: 'null'}] becomes type: [string, 'null']
inner models     move to `components.schemas`, under their title
equal members    move to `components.schemas` if they are long, under the name of the members
defaults         of objects become {} where they repeat the defaults of the members
derived models   refer to their base with allOf, and declare only their own members
responses        admit further members, which later versions may add
unused models    are removed: those to which no other part refers
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Schema = dict[str, Any]

_BY_NAME = ("properties", "patternProperties", "$defs")
"""The keywords with schemas by name."""
_INNER = ("anyOf", "oneOf", "allOf", "items", "additionalProperties", "propertyNames")
"""The keywords with a schema or a list of schemas."""
_LONG = 300
"""The number of characters of JSON above which a schema is long."""
_NULL = {"type": "null"}
_DERIVED = {"Job": "JobSummary", "IssuedKey": "ApiKey"}
"""Each model that has all members of another one, with that base."""


def compact_schemas(document: dict[str, Any]) -> None:
    """Shortens all schemas of an OpenAPI document, those of its operations too."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    _remove_unused(document)
    for schema in list(schemas.values()):
        _move_inner_models(schema, schemas)
    for name, schema in list(_schemas_of_operations(document)) + list(schemas.items()):
        for inner_name, inner in list(_nodes(name, schema)):
            if _same(inner.get("title", ""), inner_name):
                inner.pop("title", None)
            _join_null(inner)
            if isinstance(inner.get("default"), dict) and inner["default"] == _defaults(inner, schemas):
                inner["default"] = {}
    _move_equal_members(schemas)
    for name, base in _DERIVED.items():
        _derive(schemas, name, base)
    _open_responses(document)


def _remove_unused(document: Mapping[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    for name in [name for name in schemas if f'"#/components/schemas/{name}"' not in text]:
        del schemas[name]


def refer(components: dict[str, Any], kind: str, name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Adds the value to the components of a kind, and returns a reference to it.

    Raises ValueError if there is another component of this name.
    """
    if components.setdefault(name, value) != value:
        raise ValueError(f"two different {kind} of the OpenAPI document have the name {name}")
    return {"$ref": f"#/components/{kind}/{name}"}


def _schemas_of_operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Yields the name and the schema of each parameter and body; bodies have no name."""
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                yield parameter["name"], parameter["schema"]
            for body in (operation.get("requestBody", {}), *operation["responses"].values()):
                for media in body.get("content", {}).values():
                    yield "", media["schema"]


def _nodes(name: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yields a schema and all schemas in it, each with the name of the member that it belongs to."""
    yield name, schema
    for keyword in _BY_NAME:
        for inner_name, inner in schema.get(keyword, {}).items():
            yield from _nodes(inner_name, inner)
    for keyword in _INNER:
        found = schema.get(keyword)
        for inner in found if isinstance(found, list) else (found,):
            if isinstance(inner, dict):
                yield from _nodes(name, inner)


def _same(title: str, name: str) -> bool:
    return title.casefold().replace(" ", "") == name.casefold().replace("_", "").replace("-", "")


def _move_inner_models(schema: Schema, schemas: dict[str, Schema]) -> None:
    for _, node in list(_nodes("", schema)):
        for alternative in node.get("anyOf", ()):
            if "properties" in alternative and "title" in alternative:
                model = dict(alternative)
                alternative.clear()
                alternative.update(refer(schemas, "schemas", model["title"], model))


def _join_null(schema: Schema) -> None:
    alternatives = schema.get("anyOf", ())
    first: Schema = alternatives[0] if list(alternatives[1:]) == [_NULL] else {}
    if not isinstance(first.get("type"), str) or first.keys() & {"enum", "const"}:
        return
    if not first.keys() & schema.keys():
        others = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
        schema.clear()
        schema.update(first, type=[first["type"], "null"], **others)


def _defaults(schema: Schema, schemas: Mapping[str, Schema]) -> dict[str, Any] | None:
    """Returns the defaults of the members of a model, to which `schema` refers; None if it does not refer to one."""
    model = schemas.get(schema.get("$ref", "").rpartition("/")[2], {})
    if "properties" not in model:
        return None
    members = model["properties"].items()
    return {
        name: _defaults(member, schemas) if isinstance(member["default"], dict) else member["default"]
        for name, member in members
        if member.get("default") is not None
    }


def _move_equal_members(schemas: dict[str, Schema]) -> None:
    members = [
        (schema["properties"], name) for schema in list(schemas.values()) for name in schema.get("properties", ())
    ]
    counts = Counter(json.dumps(properties[name]) for properties, name in members)
    for properties, name in members:
        text = json.dumps(properties[name])
        if len(text) > _LONG and counts[text] > 1:
            component = "".join(part.capitalize() for part in name.split("_"))
            properties[name] = refer(schemas, "schemas", component, properties[name])


def _derive(schemas: dict[str, Schema], name: str, base: str) -> None:
    """Declares a model as its base and its own members.

    Raises ValueError if the model declares a member of its base in another way.
    """
    model, common = schemas[name], schemas[base]
    differing = [key for key, value in common["properties"].items() if model["properties"].get(key) != value]
    if differing:
        raise ValueError(f"{name} declares {', '.join(differing)} in another way than {base}")
    own = [key for key in model["properties"] if key not in common["properties"]]
    schemas[name] = {
        "description": model["description"],
        "allOf": [
            {"$ref": f"#/components/schemas/{base}"},
            {
                "type": "object",
                "properties": {key: model["properties"][key] for key in own},
                "required": [key for key in own if key in model["required"]],
            },
        ],
    }


def _open_responses(document: Mapping[str, Any]) -> None:
    """Removes `additionalProperties: false` from the models that no body of a request uses."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    bodies = [
        media["schema"]
        for item in document["paths"].values()
        for operation in item.values()
        for media in operation.get("requestBody", {}).get("content", {}).values()
    ]
    found, waiting = set[str](), [name for body in bodies for name in _references(body)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _references(schemas[name])
    for name in schemas.keys() - found:
        for _, node in list(_nodes(name, schemas[name])):
            if node.get("additionalProperties") is False:
                del node["additionalProperties"]


def _references(schema: Schema) -> list[str]:
    """Returns the names of the models to which a schema or a schema in it refers."""
    nodes = [node for _, node in _nodes("", schema)]
    mapped = [one for node in nodes for one in node.get("discriminator", {}).get("mapping", {}).values()]
    return [one.rpartition("/")[2] for one in (*mapped, *(node["$ref"] for node in nodes if "$ref" in node))]
