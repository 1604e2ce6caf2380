"""`evenkeel profile`: the request, and the hot keys in the output."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import httpx
import pytest

from service.cli.connection import Connection
from tests.support.scripted import answers, scripted
from tests.support.served import Evenkeel

PROFILE: dict[str, Any] = {
    "table": {"files": 8, "bytes": 6_000_000, "rows": 336_776, "rows_are_exact": True, "new": 1},
    "keys": [
        {
            "columns": ["tailnum"],
            "rows": 336_776,
            "rows_are_exact": True,
            "sampled_rows": 100_000,
            "distinct_keys": 4_044,
            "null_share": 0.0075,
            "hot_keys": [
                {"value": "N725MQ\x1b[2J", "share": 0.4, "estimated_rows": 134_710, "is_null": False, "new": 1},
                {"value": "NULL", "share": 0.0075, "estimated_rows": 2_512, "is_null": True},
            ],
            "advice": "One task of 200 would have 40% of the rows.",
            "new": {"x": 1},
        },
        {
            "columns": ["origin", "dest"],
            "rows": 336_776,
            "rows_are_exact": True,
            "sampled_rows": 336_776,
            "distinct_keys": 224,
            "null_share": 0,
            "hot_keys": [],
            "advice": "",
        },
    ],
    "statistics_ms": 12,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """The requests to a service that answers with the profile."""
    seen: list[tuple[str, str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path, json.loads(request.content)))
        return httpx.Response(200, json=PROFILE)

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr("service.cli.session.Connection", partial(Connection, transport=transport))
    return seen


def test_hot_keys_and_advice(asked: list[tuple[str, str, Any]], evenkeel: Evenkeel) -> None:
    result = evenkeel("profile", "parquet:flights/", "tailnum", "origin, dest", "--slots", "200")
    assert result.exit_code == 0, result.output
    body = {
        "table": {"format": "parquet", "path": "flights/"},
        "keys": [["tailnum"], ["origin", "dest"]],
        "slots": 200,
    }
    assert asked == [("POST", "/v1/profiles", body)]
    assert result.stdout.splitlines() == [
        "parquet:flights/: 336,776 rows, 8 files, 6 MB",
        "",
        "tailnum: about 4,044 values, 0.8% NULL; from a sample of 100,000 rows",
        "  value          share  rows, about",
        "  N725MQ\\x1b[2J  40.0%      134,710",
        "  NULL            0.8%        2,512",
        "One task of 200 would have 40% of the rows.",
        "",
        "origin, dest: 224 values",
        "  No value is frequent.",
    ]


def test_json_is_the_response(asked: list[tuple[str, str, Any]], evenkeel: Evenkeel) -> None:
    options = ("--schema", "uid BIGINT", "--read", "header=true", "--json")
    assert json.loads(evenkeel("profile", "users.csv", "uid", *options).stdout) == PROFILE
    table = {"path": "users.csv", "schema": "uid BIGINT", "options": {"header": True}}
    assert asked[0][2] == {"table": table, "keys": [["uid"]]}


def test_invalid_arguments(asked: list[tuple[str, str, Any]], evenkeel: Evenkeel, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, ...]] = [
        ("flights.parquet", "a,,b"),
        ("flights.parquet",),
        ("flights.parquet", "tailnum", "--exact", "--slots", "8"),
    ]
    for arguments in cases:
        with subtests.test(arguments=arguments):
            assert evenkeel("profile", *arguments).exit_code == 2
            assert asked == []


def test_service_without_profiles(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(answers(404, {})) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        result = evenkeel("profile", "flights.parquet", "tailnum")
    assert (result.exit_code, "--exact" in result.stderr) == (8, True)


def test_failed_exact_profile_cancels_its_jobs(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"id": "a1", "status": "QUEUED", "finished": False}
    refusal = {"code": "unknown_column", "title": "Unknown column", "status": 422, "type": "/problems/unknown_column"}
    steps = (answers(202, job), answers(202, {**job, "id": "a2"}), answers(422, refusal), answers(202, job))
    with scripted(*steps) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        assert evenkeel("profile", "flights.parquet", "tailnum", "nothing", "--exact").exit_code == 2
    assert [seen.path for seen in service.seen[3:]] == ["/v1/jobs/a1/cancel", "/v1/jobs/a2/cancel"]


def test_a_missing_key_is_asked_for_with_an_example(evenkeel: Evenkeel) -> None:
    shown = evenkeel("profile", "orders.csv")
    assert shown.exit_code == 2
    assert "evenkeel profile orders.csv customer_id" in shown.stderr
