"""The shorter forms of schemas: the same meaning, and the meaning of what generators read."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.compact_schemas import compact_schemas, refer


def compacted(**schemas: dict[str, Any]) -> dict[str, Any]:
    """Returns the schemas in their short forms, together with the models that are derived from others."""
    models: dict[str, Any] = {
        "JobSummary": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        "Job": {
            "description": "A job.",
            "properties": {"id": {"type": "string"}, "spec": {"type": "object"}},
            "required": ["id", "spec"],
        },
        "ApiKey": {"type": "object", "properties": {}, "required": []},
        "IssuedKey": {"description": "A key.", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    }
    models |= schemas
    document = _document({}, models, {"Unused": {"type": "object"}})
    compact_schemas(document)
    found: dict[str, Any] = document["components"]["schemas"]
    return found


def _document(
    paths: dict[str, Any], models: dict[str, Any], unused: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Returns a document that refers to `models`, and has `unused` ones."""
    used = {name: {"$ref": f"#/components/schemas/{name}"} for name in models}
    return {"paths": paths, "x-used": used, "components": {"schemas": models | (unused or {})}}


def test_models_to_which_nothing_refers_are_removed() -> None:
    assert set(compacted()) == {"JobSummary", "Job", "ApiKey", "IssuedKey"}


def test_titles_that_repeat_names_are_removed() -> None:
    member = {"type": "string", "title": "Job Id"}
    other = {"type": "object", "title": "SettingsPatch"}
    row = compacted(Row={"title": "Row", "properties": {"job_id": member, "settings": other, "title": {}}})["Row"]
    assert row == {"properties": {"job_id": {"type": "string"}, "settings": other, "title": {}}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "description": "When."},
            {"type": ["string", "null"], "format": "date-time", "description": "When."},
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            {"type": ["string", "null"], "default": None},
        ),
        (
            {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            {"type": ["array", "null"], "items": {"type": "string"}},
        ),
    ],
)
def test_nullable_types_are_joined(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert compacted(Row={"properties": {"a": schema}})["Row"]["properties"]["a"] == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#/components/schemas/Job"}, {"type": "null"}]},
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
        {"anyOf": [{"type": "string", "description": "One."}, {"type": "null"}], "description": "Two."},
        {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    ],
)
def test_other_alternatives_remain(schema: dict[str, Any]) -> None:
    assert compacted(Row={"properties": {"a": dict(schema)}})["Row"]["properties"]["a"] == schema


def test_models_in_members_get_a_name() -> None:
    model = {"title": "Backlog", "type": "object", "properties": {"rows": {"type": "integer"}}}
    schemas = compacted(Row={"properties": {"backlog": {"anyOf": [model, {"type": "null"}]}}})
    assert schemas["Row"]["properties"]["backlog"]["anyOf"][0] == {"$ref": "#/components/schemas/Backlog"}
    assert schemas["Backlog"] == {"type": "object", "properties": {"rows": {"type": "integer"}}}


def test_long_members_that_are_equal_are_declared_once() -> None:
    def member() -> dict[str, Any]:
        return {"type": "string", "description": "x" * 300}

    schemas = compacted(A={"properties": {"waiting_for": member()}}, B={"properties": {"waiting_for": member()}})
    reference = {"$ref": "#/components/schemas/WaitingFor"}
    assert schemas["A"]["properties"] == schemas["B"]["properties"] == {"waiting_for": reference}
    assert schemas["WaitingFor"] == member()


@pytest.mark.parametrize(("default", "expected"), [({"size": 1}, {}), ({"size": 2}, {"size": 2})])
def test_defaults_that_repeat_those_of_members_are_empty(default: dict[str, Any], expected: dict[str, Any]) -> None:
    inner = {"type": "object", "properties": {"size": {"type": "integer", "default": 1}, "name": {"type": "string"}}}
    outer = {"properties": {"inner": {"$ref": "#/components/schemas/Inner", "default": default}}}
    assert compacted(Inner=inner, Outer=outer)["Outer"]["properties"]["inner"]["default"] == expected


def test_derived_models_refer_to_their_base() -> None:
    page = {"properties": {"jobs": {"type": "array", "items": {"$ref": "#/components/schemas/JobSummary"}}}}
    schemas = compacted(Page=page)
    base = {"$ref": "#/components/schemas/JobSummary"}
    own = {"type": "object", "properties": {"spec": {"type": "object"}}, "required": ["spec"]}
    assert schemas["Job"] == {"description": "A job.", "allOf": [base, own]}
    assert schemas["Page"]["properties"]["jobs"]["items"] == base


def test_a_derived_model_that_changes_a_member_is_refused() -> None:
    changed = {"description": "A job.", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    with pytest.raises(ValueError, match="Job declares id in another way than JobSummary"):
        compacted(Job=changed)


def test_two_components_of_one_name_are_refused() -> None:
    components: dict[str, Any] = {}
    assert refer(components, "schemas", "Row", {"type": "object"}) == {"$ref": "#/components/schemas/Row"}
    with pytest.raises(ValueError, match="two different schemas of the OpenAPI document have the name Row"):
        refer(components, "schemas", "Row", {"type": "string"})


def test_only_models_of_requests_refuse_further_members() -> None:
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Spec"}}}}
    models: dict[str, Any] = {
        "Spec": {**closed, "properties": {"sink": {"$ref": "#/components/schemas/Sink"}}},
        **{name: dict(closed) for name in ("Sink", "Page", "JobSummary", "ApiKey")},
        "Job": {"description": "A job.", "properties": {}, "required": []},
        "IssuedKey": {"description": "A key.", "properties": {}, "required": []},
    }
    operation = {"requestBody": body, "responses": {}}
    document = _document({"/v1/jobs": {"post": operation}}, models)
    compact_schemas(document)
    found = document["components"]["schemas"]
    assert {name for name in found if "additionalProperties" in found[name]} == {"Spec", "Sink"}
