"""The recorded examples, and their short forms in the OpenAPI document: complete, and valid for their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.api.examples import FILE, add_examples, load_examples, shortened
from service.api.shared_components import codes_of
from service.contract.job import JobSpec
from tests.support.api import operations, specification

BINARY = {"application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"}
"""Media types without examples, because they are binary."""

PROBLEM = "application/problem+json"


@cache
def by_id() -> dict[str, dict[str, Any]]:
    return {operation["operationId"]: operation for _, _, operation in operations()}


def shown(media: dict[str, Any]) -> list[Any]:
    """Returns the examples of a media type."""
    named = [example["value"] for example in media.get("examples", {}).values()]
    return [*named, media["example"]] if "example" in media else named


def faults(schema: dict[str, Any], value: Any) -> list[str]:
    whole = {**schema, "components": specification()["components"]}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(whole).iter_errors(value)]


def contents(operation: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields place, media type and content of the request and of every response."""
    for media_type, media in operation.get("requestBody", {}).get("content", {}).items():
        yield "request", media_type, media
    for status, response in operation["responses"].items():
        for media_type, media in response.get("content", {}).items():
            yield status, media_type, media


def test_every_operation_has_examples_of_its_request_and_of_a_response(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            shows_response = False
            for where, media_type, media in contents(operation):
                if media_type in BINARY or media_type == PROBLEM:
                    continue
                elsewhere = where != "request" and media["schema"] in shown_schemas(name)
                assert shown(media) or elsewhere, f"{media_type}: run `python -m tests.clients.record_examples`"
                shows_response |= where != "request"
            assert shows_response or set(operation["responses"]) & {"204"}


def shown_schemas(except_of: str) -> list[dict[str, Any]]:
    """Returns the schemas of responses of which other operations have an example."""
    return [
        media["schema"]
        for name, operation in by_id().items()
        for where, _, media in contents(operation)
        if name != except_of and where != "request" and shown(media)
    ]


def recorded() -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Yields operation, place, content and value of each recorded example, in its full length."""
    for name, bodies in load_examples()["operations"].items():
        operation = by_id()[name]
        for media_type, examples in bodies.get("requests", {}).items():
            for example in examples.values():
                yield name, "request", operation["requestBody"]["content"][media_type], example["value"]
        for status, responses in bodies.get("responses", {}).items():
            for media_type, value in responses.items():
                yield name, status, operation["responses"][status]["content"][media_type], value


def test_every_example_is_valid_for_its_schema(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            for where, media_type, media in contents(operation):
                for value in shown(media):
                    assert faults(media["schema"], value) == [], (where, media_type)


def test_every_recorded_example_is_valid_for_its_schema(subtests: pytest.Subtests) -> None:
    checked = 0
    for name, where, media, value in recorded():
        with subtests.test(operation=name, where=where):
            assert faults(media["schema"], value) == []
            checked += 1
    assert checked > 40


def test_recorded_responses_have_only_declared_fields(subtests: pytest.Subtests) -> None:
    for name, where, media, value in recorded():
        if where != "request" and isinstance(value, dict):
            with subtests.test(operation=name):
                assert set(value) <= members(media["schema"])


def members(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return members(specification()["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    inherited = (members(part) for part in schema.get("allOf", ()))
    return set(schema.get("properties", {})).union(*inherited)


def test_short_examples_are_short() -> None:
    lengths = {
        (name, where): len(json.dumps(value))
        for name, operation in by_id().items()
        for where, _, media in contents(operation)
        for value in shown(media)
    }
    assert max(lengths.values()) <= 2000, lengths
    assert sum(lengths.values()) <= 20_000


def test_examples_of_parameters_and_headers_are_valid(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            for parameter in operation.get("parameters", []):
                for value in parameter["schema"].get("examples", []):
                    assert faults(parameter["schema"], value) == [], parameter["name"]
            for response in operation["responses"].values():
                for header, told in response.get("headers", {}).items():
                    assert faults(told["schema"], told["example"]) == [], header


def test_every_documented_problem_has_a_recorded_example() -> None:
    documented = {
        code
        for operation in by_id().values()
        for response in operation["responses"].values()
        for code in codes_of(response)
    }
    problems = load_examples()["problems"]
    assert set(problems) == documented
    for code, problem in problems.items():
        assert problem["detail"], code
        assert {*problem} <= {"detail", "errors"}, code


def test_every_job_in_the_examples_is_valid() -> None:
    jobs = [value for name, where, _, value in recorded() if (name, where) in JOBS]
    assert len(jobs) >= 6
    for job in jobs:
        JobSpec.model_validate(job)


JOBS = {("submit_job", "request"), ("explain_job", "request")}


def test_every_recorded_example_belongs_to_an_operation() -> None:
    assert set(load_examples()["operations"]) <= set(by_id())


def test_examples_do_not_identify_the_machine_of_the_recording() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert "/tmp" not in text
    hosts = re.findall(r'"host": "([^"]*)"', text)
    assert set(hosts) == {"node-1"}


def test_an_operation_without_examples_is_not_changed() -> None:
    operation = {"operationId": "unheard_of", "responses": {"204": {"description": "Done."}}}
    before = json.dumps(operation)
    add_examples([operation], {})
    assert json.dumps(operation) == before


ROW = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": "string", "default": "none"},
        "inner": {"anyOf": [{"$ref": "#/components/schemas/Inner"}, {"type": "null"}]},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["id", "counts"],
}
INNER = {"type": "object", "properties": {"a": {"type": "integer", "default": 1}, "b": {"type": ["string", "null"]}}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"id": 1, "note": "none", "counts": {}}, {"id": 1, "counts": {}}),
        (
            {"id": 1, "note": "n", "counts": {"a": 1, "b": 2, "c": 3}},
            {"id": 1, "note": "n", "counts": {"a": 1, "b": 2}},
        ),
        ({"id": 1, "note": "n" * 300, "counts": {}}, {"id": 1, "counts": {}}),
        ({"id": 1, "note": "one\ntwo", "counts": {}}, {"id": 1, "counts": {}}),
        ({"id": 1, "inner": None, "counts": {}}, {"id": 1, "counts": {}}),
        ({"id": 1, "inner": {"a": 1, "b": None}, "counts": {}}, {"id": 1, "counts": {}}),
        ({"id": 1, "inner": {"a": 2, "b": None}, "counts": {}}, {"id": 1, "inner": {"a": 2}, "counts": {}}),
    ],
)
def test_short_form_of_an_object(value: dict[str, Any], expected: dict[str, Any]) -> None:
    assert shortened(value, ROW, {"Inner": INNER}) == expected


def test_short_form_of_lists_and_texts() -> None:
    rows = {"type": "array", "items": ROW}
    assert shortened([{"id": 1, "counts": {}}, {"id": 2, "counts": {}}], rows, {}) == [{"id": 1, "counts": {}}]
    assert shortened([["a", 1], ["b", 2]], {"type": "array"}, {}) == [["a", 1], ["b", 2]]
    assert shortened("x" * 300, {"type": "string"}, {}) == "x" * 300
    assert shortened(f"{'x' * 100}\n{'y' * 100}\n", {"type": "string"}, {}) == f"{'x' * 100}\n"
    assert shortened(f"{'x' * 300}\ny", {"type": "string"}, {}) == f"{'x' * 300}\n"
