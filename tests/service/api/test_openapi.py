"""The OpenAPI document: rules that generated clients and readers depend on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from service.api.app import create_app
from service.api.problems import EVERYWHERE
from service.api.shared_components import codes_of
from service.config.settings import Settings
from service.contract.errors import ServiceError
from service.contract.options import JobSettings
from tests.support.api import operations, specification

FILE = Path(__file__).parents[3] / "openapi.yaml"
OPERATIONS, MOST_BYTES, MOST_BYTES_OF_AN_OPERATION = 31, 164 * 1024, 1536
"""The number of operations for which the first limit of the file's size holds, and the limit for each further one."""


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def admits(schema: dict[str, Any], value: Any) -> bool:
    return bool(Draft202012Validator({**schema, "components": specification()["components"]}).is_valid(value))


def test_configuration_does_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = specification()
    monkeypatch.setenv("EVENKEEL_API_MAX_WAIT_SECONDS", "1")
    monkeypatch.setenv("EVENKEEL_STATE_DIR", "/nonexistent")
    assert create_app(Settings()).openapi() == before


def test_the_committed_file_is_the_served_document() -> None:
    assert yaml.safe_load(FILE.read_text(encoding="utf-8")) == specification()


def test_the_committed_file_is_small() -> None:
    more_operations = max(0, len(list(operations())) - OPERATIONS)
    assert len(FILE.read_bytes()) <= MOST_BYTES + MOST_BYTES_OF_AN_OPERATION * more_operations


def test_the_committed_file_has_no_aliases() -> None:
    tokens = yaml.scan(FILE.read_text(encoding="utf-8"))
    assert not [token for token in tokens if isinstance(token, yaml.AnchorToken | yaml.AliasToken)]


def test_titles_do_not_repeat_names() -> None:
    for name, schema in specification()["components"]["schemas"].items():
        assert "title" not in schema, name
        for member, declared in schema.get("properties", {}).items():
            assert declared.get("title", "").casefold().replace(" ", "_") != member, (name, member)


def test_every_error_has_a_meaning() -> None:
    meanings = {error.code: error.meaning() for error in ServiceError.with_codes()}
    assert len(meanings) > 40
    assert [code for code, meaning in meanings.items() if not re.fullmatch(r"[A-Z].*\.", meaning)] == []


def test_shared_problems_explain_each_of_their_codes() -> None:
    for name, response in specification()["components"]["responses"].items():
        lines = response["description"].splitlines()
        assert len(lines) == len(codes_of(response)) >= 1, name
        for line in lines:
            _, _, meaning = line.partition("`: ")
            assert re.fullmatch(r"[A-Z].*\.", meaning), line


def test_operations_have_summary_description_and_declared_tags() -> None:
    declared = {tag["name"] for tag in specification()["tags"]}
    for path, method, operation in operations():
        assert operation["summary"], (path, method)
        assert operation["description"], (path, method)
        assert set(operation["tags"]) <= declared


def test_every_error_is_a_problem_and_nothing_else() -> None:
    for path, method, operation in operations():
        errors = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        assert "422" in errors, (path, method)
        for status, answer in errors.items():
            assert list(answer["content"]) == ["application/problem+json"], (path, method, status)
            assert answer["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
    assert "HTTPValidationError" not in specification()["components"]["schemas"]


def test_errors_of_any_request_are_documented_for_each_operation() -> None:
    for path, method, operation in operations():
        for error in EVERYWHERE:
            assert f"`{error.code}`" in operation["responses"][str(error.status)]["description"], (path, method)


def test_parameters_are_never_nullable() -> None:
    for path, _, operation in operations():
        for parameter in operation.get("parameters", []):
            assert "anyOf" not in parameter["schema"], (path, parameter["name"])
            assert parameter.get("description"), (path, parameter["name"])


def test_no_union_has_a_default() -> None:
    # openapi-python-client leaves out whatever has one.
    assert [
        node
        for node in nodes(specification())
        if "default" in node and isinstance(node["default"], dict) and "anyOf" in node
    ] == []


def test_discriminators_are_required() -> None:
    for name, schema in specification()["components"]["schemas"].items():
        for field, declared in schema.get("properties", {}).items():
            if field == "kind":
                assert "kind" in schema["required"], (name, declared)


def test_references_resolve_and_every_component_is_used() -> None:
    components = {kind: named for kind, named in specification()["components"].items() if kind != "securitySchemes"}
    referenced = {node["$ref"] for node in nodes(specification()) if "$ref" in node}
    assert referenced == {f"#/components/{kind}/{name}" for kind, named in components.items() for name in named}


def test_the_enumeration_of_states_is_open() -> None:
    schemas = specification()["components"]["schemas"]
    assert schemas["JobSummary"]["properties"]["status"] == {"$ref": "#/components/schemas/Status"}
    status = schemas["Status"]
    assert "enum" not in status
    assert "CANCELLING" in status["x-extensible-enum"]


def test_defaults_are_valid() -> None:
    given = [node for node in nodes(specification()) if "default" in node and not isinstance(node["default"], dict)]
    assert len(given) > 40
    assert [node for node in given if not admits(node, node["default"])] == []


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
def test_a_job_has_sql_or_a_query(given: dict[str, Any], is_admitted: bool) -> None:
    job = {"tables": {"t": {"format": "parquet", "path": "t/"}}, **given}
    assert admits({"$ref": "#/components/schemas/JobSpec"}, job) == is_admitted


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
def test_the_schema_of_settings_matches_the_validation(given: dict[str, Any], is_admitted: bool) -> None:
    assert admits({"$ref": "#/components/schemas/JobSettings"}, given) == is_admitted
    try:
        JobSettings.model_validate(given)
    except ValidationError:
        assert not is_admitted
    else:
        assert is_admitted
