"""Parameters of SQL over HTTP: what is stored and shown, and how errors name their place."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.job import JobSpec
from service.store import leases
from service.store.tables import JobRow
from tests.support.api import Api, refused
from tests.support.lifecycle import WORKER

SQL = "SELECT uid FROM orders WHERE amount > :least AND uid <> :uid"
PARAMETERS = {"least": 1.0, "uid": {"type": "BIGINT", "value": 9007199254740993}}


def submit(api: Api, parameters: Any, key: str = "", **parts: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    job = {"tables": {"orders": {"format": "parquet", "path": "orders.parquet"}}, "sql": SQL, **parts}
    return api.client.post("/v1/jobs", json={**job, "parameters": parameters}, headers=headers)


@pytest.mark.both_databases
class TestParameters:
    def test_a_job_shows_them_and_a_worker_reads_the_same(self, api: Api) -> None:
        # Numbers that PostgreSQL would store as others.
        given = {"least": -0.0, "uid": 1e22}
        answer = submit(api, given)
        assert answer.status_code == 202, answer.text
        shown = {"least": {"type": "DOUBLE", "value": "-0.0"}, "uid": {"type": "DOUBLE", "value": "1e+22"}}
        assert answer.json()["spec"]["parameters"] == shown
        assert api.client.get(answer.headers["location"]).json()["spec"]["parameters"] == shown
        with api.database.read() as session:
            row = session.get_one(JobRow, answer.json()["id"])
            assert row.spec_version == 10
            assert JobSpec.model_validate(row.spec).stored()["parameters"] == shown

    def test_a_copy_of_a_job_has_them(self, api: Api) -> None:
        first = submit(api, PARAMETERS).json()
        again = api.client.post("/v1/jobs", json=first["spec"])
        assert again.status_code == 202, again.text
        assert again.json()["spec"]["parameters"] == first["spec"]["parameters"]

    def test_a_job_without_them_is_as_before(self, api: Api) -> None:
        answer = api.submit()
        assert answer.json()["spec"].get("parameters") is None
        with api.database.read() as session:
            row = session.get_one(JobRow, answer.json()["id"])
            assert (row.spec_version, "parameters" in row.spec) == (3, False)

    def test_other_values_under_the_same_key_are_refused(self, api: Api) -> None:
        first = submit(api, PARAMETERS, "k")
        assert submit(api, dict(reversed(PARAMETERS.items())), "k").json()["id"] == first.json()["id"]
        # 1 and 1.0 are equal in Python, and values of different types in SQL.
        for other in ({**PARAMETERS, "least": 2.0}, {**PARAMETERS, "least": 1}):
            refused(submit(api, other, "k"), 422, "idempotency_key_reused")

    def test_a_streaming_job_has_them(self, api: Api) -> None:
        tables = {"orders": {"format": "parquet", "path": "arriving/"}}
        answer = submit(api, PARAMETERS, mode="incremental", tables=tables)
        assert answer.status_code == 202, answer.text
        assert answer.json()["spec"]["parameters"]["uid"] == {"type": "BIGINT", "value": "9007199254740993"}


@pytest.mark.parametrize(
    ("parameters", "code", "pointer"),
    [
        ({"least": 1.0}, "parameter_missing", "/sql"),
        ({**PARAMETERS, "other": 1}, "parameter_unused", "/parameters/other"),
        ([1.0, 2], "parameters_mixed", "/sql"),
        ({**PARAMETERS, "uid": {"type": "INT", "value": 1 << 31}}, "parameter_value", "/parameters/uid/value"),
        ({**PARAMETERS, "uid": {"type": "MONEY", "value": 1}}, "parameter_type", "/parameters/uid/type"),
        ({**PARAMETERS, "uid": [1]}, "parameter_value", "/parameters/uid"),
        ({**PARAMETERS, "uid": {"type": "INT"}}, "missing", "/parameters/uid/value"),
        ({"least-1": 1}, "parameter_name", "/parameters"),
        ([1] * 1_001, "query_too_deep", "/parameters"),
        ("x", "parameters_type", "/parameters"),
        ({"least": "\0"}, "unstorable_character", "/parameters/least"),
    ],
)
def test_errors_name_their_place(api: Api, parameters: Any, code: str, pointer: str) -> None:
    problem = submit(api, parameters).json()
    assert [(each["code"], each["pointer"]) for each in problem["errors"]] == [(code, pointer)]
    if pointer == "/sql":
        assert problem["errors"][0]["line"] == 1


def test_a_worker_of_the_version_before_leaves_the_job(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = submit(api, PARAMETERS).json()["id"]
    monkeypatch.setattr("service.store.transitions.UNDERSTOOD", JobRow.spec_version <= 9)
    with api.database.write() as session:
        assert leases.claim(session, job_id=job_id, worker=WORKER, lease_ms=1_000, now=1) is None
