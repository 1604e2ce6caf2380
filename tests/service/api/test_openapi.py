"""The specification: as committed, and fit for generated clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from service.api.problems import EVERYWHERE
from service.cli.openapi import openapi_yaml
from service.spec.options import JobSettings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(openapi_yaml())
    return loaded


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def admits(document: dict[str, Any], schema: dict[str, Any], value: Any) -> bool:
    return bool(Draft202012Validator({**schema, "components": document["components"]}).is_valid(value))


@pytest.mark.not_quick
def test_configuration_does_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = openapi_yaml()
    monkeypatch.setenv("EVENKEEL_API_MAX_WAIT_SECONDS", "1")
    monkeypatch.setenv("EVENKEEL_STATE_DIR", "/nonexistent")
    assert openapi_yaml() == before


@pytest.mark.not_quick
def test_operations_read_well_in_clients(document: dict[str, Any]) -> None:
    assert {operation["operationId"] for _, _, operation in operations(document)} == {
        "submit_job",
        "list_jobs",
        "get_job",
        "delete_job",
        "cancel_job",
        "stop_job",
        "resume_job",
        "change_job_settings",
        "get_job_stream",
        "list_job_batches",
        "get_result",
        "get_events",
        "get_plan",
        "get_metrics",
        "explain_job",
        "profile_keys",
        "declare_stream",
        "list_streams",
        "get_stream",
        "delete_stream",
        "append_rows",
        "list_workers",
        "get_worker",
        "drain_worker",
        "get_me",
        "create_key",
        "list_keys",
        "revoke_key",
        "get_health",
        "get_readiness",
        "get_prometheus_metrics",
    }
    declared = {tag["name"] for tag in document["tags"]}
    for path, method, operation in operations(document):
        assert operation["summary"], (path, method)
        assert operation["description"], (path, method)
        assert set(operation["tags"]) <= declared


def test_every_error_is_a_problem_and_nothing_else(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        errors = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        assert "422" in errors, (path, method)
        for status, answer in errors.items():
            assert list(answer["content"]) == ["application/problem+json"], (path, method, status)
            assert answer["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_what_any_request_may_be_refused_with_is_told_of_each(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for error in EVERYWHERE:
            assert f"`{error.code}`" in operation["responses"][str(error.status)]["description"], (path, method)


def test_parameters_are_never_nullable(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        for parameter in operation.get("parameters", []):
            assert "anyOf" not in parameter["schema"], (path, parameter["name"])
            assert parameter.get("description"), (path, parameter["name"])


def test_no_default_is_of_one_of_several_shapes(document: dict[str, Any]) -> None:
    # openapi-python-client leaves out whatever has one.
    assert [
        node for node in nodes(document) if "default" in node and isinstance(node["default"], dict) and "anyOf" in node
    ] == []


def test_discriminators_are_required(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for field, declared in schema.get("properties", {}).items():
            if field == "kind":
                assert "kind" in schema["required"], (name, declared)


def test_every_reference_leads_somewhere_and_every_schema_is_used(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    referenced = {node["$ref"] for node in nodes(document) if "$ref" in node}
    assert referenced == {f"#/components/schemas/{name}" for name in schemas}


def test_states_may_grow(document: dict[str, Any]) -> None:
    status = document["components"]["schemas"]["Job"]["properties"]["status"]
    assert "enum" not in status
    assert "CANCELLING" in status["x-extensible-enum"]


def test_defaults_are_among_what_is_admitted(document: dict[str, Any]) -> None:
    given = [node for node in nodes(document) if "default" in node and not isinstance(node["default"], dict)]
    assert len(given) > 40
    assert [node for node in given if not admits(document, node, node["default"])] == []


@pytest.mark.parametrize(
    ("given", "is_admitted"),
    [
        ({}, False),
        ({"sql": "SELECT 1"}, True),
        ({"query": {"source": {"kind": "table", "table": "t"}}}, True),
        ({"sql": "SELECT 1", "query": None}, True),
        ({"sql": None, "query": {"source": {"kind": "table", "table": "t"}}}, True),
        ({"sql": None, "query": None}, False),
        ({"sql": "SELECT 1", "query": {"source": {"kind": "table", "table": "t"}}}, False),
    ],
)
def test_a_job_has_sql_or_a_query(document: dict[str, Any], given: dict[str, Any], is_admitted: bool) -> None:
    job = {"tables": {"t": {"format": "parquet", "path": "t/"}}, **given}
    assert admits(document, {"$ref": "#/components/schemas/JobSpec"}, job) == is_admitted


@pytest.mark.parametrize(
    ("given", "is_admitted"),
    [
        ({"mini_batch": {"enabled": True}}, True),
        ({"mini_batch": {"enabled": "true"}}, True),
        ({"mini_batch": {"enabled": 1}}, False),
        ({"incremental_agg": 1}, False),
        ({"skew": {"threshold": 1024}}, True),
        ({"skew": {"threshold": "64 mb"}}, True),
        ({"skew": {"threshold": "64 parsecs"}}, False),
        ({"mini_batch": {"allow_latency": "500ms"}}, True),
        ({"mini_batch": {"allow_latency": "5 parsecs"}}, False),
        ({"mini_batch": {"allow_latency": 5}}, False),
        ({"mini_batch.allow_latency": "500ms"}, True),
        ({"table.optimizer.agg-phase-strategy": "TWO_PHASE"}, True),
        ({"sql.optimizer.agg.phase.enforcer": "TWO_PHASE", "skew": {"factor": 2}}, True),
        ({"agg_phaze": "TWO_PHASE"}, False),
        ({"table_optimizer.agg-phase-strategy": "TWO_PHASE"}, False),
    ],
)
def test_settings_are_admitted_as_the_service_takes_them(
    document: dict[str, Any], given: dict[str, Any], is_admitted: bool
) -> None:
    assert admits(document, {"$ref": "#/components/schemas/JobSettings"}, given) == is_admitted
    try:
        JobSettings.model_validate(given)
    except ValidationError:
        assert not is_admitted
    else:
        assert is_admitted
