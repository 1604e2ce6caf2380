"""The recorded examples of the OpenAPI document: complete, and valid for their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.api import openapi
from service.contract.job import JobSpec
from tests.support.api import operations, specification

BINARY = {"application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"}
"""Media types without examples, because they are binary."""

PROBLEM = "application/problem+json"


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


def test_every_body_has_an_example(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            missing = [
                (where, media_type)
                for where, media_type, media in contents(operation)
                if media_type not in BINARY and not shown(media)
            ]
            assert missing == [], "run `python -m tests.clients.record_examples`"


def test_every_example_is_valid_for_its_schema(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            checked = 0
            for where, media_type, media in contents(operation):
                for value in shown(media):
                    assert faults(media["schema"], value) == [], (where, media_type)
                    checked += 1
            assert checked >= 2


def test_responses_have_only_declared_fields(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            for where, media_type, media in contents(operation):
                if media_type == "application/json" and where != "request":
                    for value in shown(media):
                        declared = resolved(media["schema"]).get("properties", {})
                        assert set(value) <= set(declared), where


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = specification()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def test_examples_of_parameters_and_headers_are_valid(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            for parameter in operation.get("parameters", []):
                for value in parameter["schema"].get("examples", []):
                    assert faults(parameter["schema"], value) == [], parameter["name"]
            for response in operation["responses"].values():
                for header, told in response.get("headers", {}).items():
                    assert faults(told["schema"], told["example"]) == [], header


def test_every_documented_problem_has_a_recorded_example(subtests: pytest.Subtests) -> None:
    for name, operation in by_id().items():
        with subtests.test(operation=name):
            for status, response in operation["responses"].items():
                told = re.findall(r"`(\w+)`", response["description"]) if PROBLEM in response.get("content", {}) else []
                examples = response["content"][PROBLEM]["examples"] if told else {}
                assert set(examples) == set(told)
                for code, example in examples.items():
                    problem = example["value"]
                    assert (problem["code"], problem["type"], str(problem["status"])) == (
                        code,
                        f"/problems/{code}",
                        status,
                    )
                    # What happened and what to do, not the title once more.
                    assert problem["detail"] != problem["title"], code


def test_every_job_in_the_examples_is_valid() -> None:
    jobs = [
        value
        for name in ("submit_job", "explain_job")
        for where, _, media in contents(by_id()[name])
        for value in (shown(media) if where == "request" else [])
    ]
    assert len(jobs) >= 6
    for job in jobs:
        JobSpec.model_validate(job)


def test_every_file_of_examples_belongs_to_an_operation() -> None:
    recorded = {path.stem for path in openapi.BODIES.glob("*.json")}
    assert recorded - {"problems"} <= set(by_id())


def test_examples_do_not_identify_the_machine_of_the_recording() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in openapi.BODIES.glob("*.json"))
    assert "/tmp" not in texts
    hosts = re.findall(r'"host": "([^"]*)"', texts)
    assert set(hosts) == {"node-1"}


def test_an_operation_without_examples_is_not_changed() -> None:
    operation = {"operationId": "unheard_of", "responses": {"204": {"description": "Done."}}}
    before = json.dumps(operation)
    openapi.add_examples(operation)
    assert json.dumps(operation) == before
