"""Jobs that a client may post, and their stored form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.job import JobSpec

TABLES = {"t": {"format": "parquet", "path": "t/"}}
JSON = {"format": "json", "path": "t"}


def job(**parts: Any) -> JobSpec:
    return JobSpec.model_validate({"tables": TABLES, "sql": "SELECT 1 FROM t", **parts})


def csv(**options: str) -> dict[str, Any]:
    return {"t": {"format": "csv", "path": "t", "schema": "a INT", "options": options}}


@pytest.mark.parametrize("delimiter", [";", "\t", "|", " ", "\u20ac"])
def test_valid_delimiters(delimiter: str) -> None:
    assert job(tables=csv(delimiter=delimiter)).file_tables["t"].options.delimiter == delimiter


def test_defaults() -> None:
    spec = job()
    assert spec.title == "SELECT 1 FROM t"
    assert (spec.name, spec.mode, spec.sink.kind, spec.limits.max_attempts) == ("unnamed", "batch", "managed", 3)
    assert spec.limits.timeout == timedelta(hours=1)


def test_a_stored_job_can_be_read() -> None:
    spec = job(
        tables={"t": {"format": "csv", "path": "t", "schema": "a INT", "options": {"header": True, "delimiter": ";"}}},
        settings={"table.optimizer.agg-phase-strategy": "ONE_PHASE"},
        limits={"timeout": "90s"},
    )
    assert JobSpec.model_validate(spec.model_dump(mode="json", by_alias=True)) == spec


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"sql": None}, "sql_or_query"),
        ({"query": {"source": {"kind": "table", "table": "t"}}}, "sql_or_query"),
        ({"tables": {"t": {"format": "parquet", "path": "t", "schema": "a INT"}}}, "schema_not_applicable"),
        ({"tables": {}}, "too_short"),
        ({"tables": {"t": {"format": "excel", "path": "t"}}}, "enum"),
        ({"tables": {"t": {"format": "parquet", "path": ""}}}, "string_too_short"),
        (
            {"tables": {"t": {"format": "csv", "path": "t", "schema": "a INT", "options": {"sepp": ";"}}}},
            "extra_forbidden",
        ),
        ({"tables": csv(delimiter='"')}, "delimiter_is_quote"),
        ({"tables": csv(quote=",")}, "delimiter_is_quote"),
        ({"tables": csv(delimiter="\n")}, "string_pattern_mismatch"),
        ({"tables": csv(delimiter="\r")}, "string_pattern_mismatch"),
        ({"tables": csv(quote="\n")}, "string_pattern_mismatch"),
        ({"tables": csv(delimiter="")}, "string_pattern_mismatch"),
        ({"tables": csv(delimiter="||")}, "string_pattern_mismatch"),
        ({"settings": {"nosuch": 1}}, "unknown_setting"),
        ({"sql": "x" * 100_001}, "query_too_deep"),
        ({"sql": ""}, "string_too_short"),
        ({"name": "a\nb"}, "string_pattern_mismatch"),
        ({"mode": "now and then"}, "enum"),
        ({"limits": {"timeout": "0s"}}, "greater_than_equal"),
        ({"limits": {"timeout": "8d"}}, "less_than_equal"),
        ({"limits": {"timeout": 5}}, "value_error"),
        ({"limits": {"timeout": None}}, "timeout_required"),
        ({"limits": {"max_attempts": 0}}, "greater_than_equal"),
        ({"sink": {"kind": "mysql"}}, "enum"),
        ({"sink": {}}, "missing"),
        ({"extra": 1}, "extra_forbidden"),
        ({"parameters": "x"}, "parameters_type"),
        ({"parameters": {"1a": 1}}, "parameter_name"),
        ({"parameters": {"a" * 65: 1}}, "parameter_name"),
        ({"parameters": {"ä": 1}}, "parameter_name"),
        ({"parameters": {"a": [1]}}, "parameter_value"),
        ({"parameters": [float("nan")]}, "parameter_value"),
        ({"parameters": [{"type": "INT"}]}, "missing"),
        ({"parameters": [{"type": "INT", "value": {}}]}, "parameter_value"),
        ({"parameters": [{"type": "INT", "value": 1, "scale": 2}]}, "extra_forbidden"),
        ({"parameters": [1] * 1_001}, "query_too_deep"),
        ({"parameters": {f"p{number}": 1 for number in range(1_001)}}, "query_too_deep"),
        (
            {
                "sql": None,
                "query": {"source": {"kind": "table", "table": "t"}, "select": [{"expression": "a", "name": "a"}]},
                "parameters": {"a": 1},
            },
            "parameters_without_sql",
        ),
    ],
)
def test_refused(parts: dict[str, Any], kind: str) -> None:
    with pytest.raises(ValidationError) as caught:
        job(**parts)
    assert [error["type"] for error in caught.value.errors()] == [kind]


def test_newer_fields_with_default_values_are_not_stored() -> None:
    stored = job().stored()
    assert sorted(stored) == ["limits", "mode", "name", "query", "settings", "sink", "sql", "tables"]
    assert sorted(stored["tables"]["t"]) == ["format", "options", "path", "schema"]
    assert "state" not in stored["settings"]
    assert "optimizer" not in stored["settings"]
    assert stored["sink"] == {"kind": "managed"}
    assert sorted(stored["limits"]) == ["max_attempts", "timeout"]
    assert JobSpec.model_validate(stored) == job()


def test_older_workers_read_the_state_of_a_job_without_a_limit() -> None:
    stored = job(mode="incremental", settings={"state.partitions": 4}).stored()
    assert stored["settings"]["state"] == {"provider": "rocksdb", "partitions": 4}


@pytest.mark.parametrize(
    ("parts", "version"),
    [
        ({}, 3),
        ({"settings": {"state.partitions": 4}}, 4),
        ({"mode": "incremental"}, 4),
        ({"mode": "continuous"}, 4),
        (
            {
                "mode": "continuous",
                "tables": {
                    "s": {"format": "rate"},
                    "t": {"format": "parquet", "path": "t/", "role": "static", "refresh": True},
                },
            },
            5,
        ),
        ({"tables": {"t": {"format": "csv", "path": "t/", "schema": "a BIGINT", "options": {"multi_line": True}}}}, 6),
        ({"tables": {"t": {"format": "json", "path": "t/", "schema": "a BIGINT", "options": {"multi_line": True}}}}, 3),
        ({"limits": {"failure_retries": 1}}, 7),
        ({"settings": {"optimizer.timeout": "2s"}}, 9),
        ({"settings": {"optimizer.timeout": "10s"}}, 3),
        ({"settings": {"optimizer.timeout": "2s", "optimizer.join_reorder": "auto"}}, 9),
        ({"settings": {"table.optimizer.join-reorder-enabled": True}}, 23),
        ({"parameters": {}}, 3),
        ({"parameters": {"a": 1}}, 10),
        ({"parameters": [None]}, 10),
        ({"mode": "incremental", "sink": {"kind": "parquet", "path": "out"}}, 4),
        ({"mode": "incremental", "sink": {"kind": "parquet", "path": "out", "change_log": True}}, 22),
        ({"mode": "incremental", "sink": {"kind": "managed", "change_log": True}}, 22),
        ({"mode": "incremental", "sink": {"kind": "json", "path": "out"}}, 22),
        ({"mode": "incremental", "settings": {"state.limit": "1GB"}}, 22),
        ({"compare_with": "e0a9a1ab-1ff8-4d24-8f9e-cb6b3df1f6c4"}, 8),
        ({"compare_with": "e0a9a1ab-1ff8-4d24-8f9e-cb6b3df1f6c4", "limits": {"failure_retries": 1}}, 8),
    ],
)
def test_the_version_that_a_job_needs(parts: dict[str, Any], version: int) -> None:
    assert job(**parts).needs_version == version


def test_a_new_setting_is_stored_only_if_it_is_set() -> None:
    """Workers of the version before read the settings of the optimizer, and refuse a name that they do not know."""
    assert job(settings={"optimizer.timeout": "2s"}).stored()["settings"]["optimizer"] == {"timeout": "2s"}
    assert job(settings={"optimizer.join_reorder": False}).stored()["settings"]["optimizer"]["join_reorder"] == "false"


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": {"failure_retries": False}},
        {"limits": {"max_attempts": True}},
        {"settings": {"distinct_split": {"bucket_num": True}}},
        {"settings": {"mini_batch": {"size": True}}},
        {"settings": {"state": {"partitions": True}}},
    ],
    ids=str,
)
def test_a_flag_cannot_be_a_number(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="int_type"):
        job(**changes)


_REFRESHED = {"format": "parquet", "path": "t/", "role": "static"}


def _renamed_job(output: str, refresh: str) -> JobSpec:
    tables = {"s": {"format": "rate"}, "t": {**_REFRESHED, refresh: True}}
    return job(mode="continuous", tables=tables, **{output: "update"})


def test_old_names_of_fields_are_accepted_and_stored() -> None:
    spec = _renamed_job("output", "follow")
    assert spec == _renamed_job("output_mode", "refresh")
    assert (spec.output_mode, list(spec.refreshed)) == ("update", ["t"])
    posted = spec.model_dump(mode="json", by_alias=True)
    assert (posted["output_mode"], posted["tables"]["t"]["refresh"]) == ("update", True)
    stored = spec.stored()
    assert (stored["output"], stored["tables"]["t"]["follow"]) == ("update", True)
    assert "output_mode" not in stored
    assert "refresh" not in stored["tables"]["t"]
    assert JobSpec.model_validate(stored) == spec


@pytest.mark.parametrize(
    ("parts", "at"),
    [
        ({"output": "update", "output_mode": "update"}, "output"),
        ({"tables": {"t": {**_REFRESHED, "follow": True, "refresh": True}}}, "tables.t.follow"),
    ],
)
def test_an_old_and_a_new_name_together_are_refused(parts: dict[str, Any], at: str) -> None:
    with pytest.raises(ValidationError) as caught:
        job(**{"mode": "continuous", **parts})
    errors = [(error["type"], ".".join(map(str, error["loc"]))) for error in caught.value.errors()]
    assert errors == [("renamed_field", at)]
