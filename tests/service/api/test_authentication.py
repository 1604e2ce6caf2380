"""Authentication and scopes: each operation with each kind of key, and the separation of tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from service.api.authentication import OPEN_PATHS
from service.contract.enums import KeyScope
from service.jobs.known_jobs import KnownJobs
from service.keys.administration import KeyRequest, issue_key, revoke_key
from service.keys.verification import KeyRing, make_secret
from service.store import workers
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.api import Api, operations, refused
from tests.support.lifecycle import SPEC

pytestmark = pytest.mark.parametrize("authentication", ["on"])

READ, SUBMIT, METRICS, ADMIN = KeyScope.READ, KeyScope.SUBMIT, KeyScope.METRICS, KeyScope.ADMIN

SCOPES: Mapping[str, set[KeyScope]] = {
    "GET /metrics": {METRICS, ADMIN},
    "GET /v1/me": set(KeyScope),
    "GET /v1/jobs": {READ},
    "GET /v1/jobs/{job_id}": {READ},
    "GET /v1/jobs/{job_id}/batches": {READ},
    "GET /v1/jobs/{job_id}/events": {READ},
    "GET /v1/jobs/{job_id}/metrics": {READ},
    "GET /v1/jobs/{job_id}/plan": {READ},
    "GET /v1/jobs/{job_id}/result": {READ},
    "GET /v1/jobs/{job_id}/stream": {READ},
    "GET /v1/streams": {READ},
    "GET /v1/streams/{name}": {READ},
    "GET /v1/workers": {READ},
    "GET /v1/workers/{worker_id}": {READ},
    "POST /v1/jobs": {SUBMIT},
    "POST /v1/explain": {SUBMIT},
    "POST /v1/profiles": {SUBMIT},
    "POST /v1/jobs/{job_id}/cancel": {SUBMIT},
    "POST /v1/jobs/{job_id}/resume": {SUBMIT},
    "POST /v1/jobs/{job_id}/stop": {SUBMIT},
    "PATCH /v1/jobs/{job_id}/settings": {SUBMIT},
    "DELETE /v1/jobs/{job_id}": {SUBMIT},
    "PUT /v1/streams/{name}": {SUBMIT},
    "POST /v1/streams/{name}/rows": {SUBMIT},
    "DELETE /v1/streams/{name}": {SUBMIT},
    "POST /v1/workers/{worker_id}/drain": {ADMIN},
    "GET /v1/keys": {ADMIN},
    "POST /v1/keys": {ADMIN},
    "DELETE /v1/keys/{key_id}": {ADMIN},
}
"""The scopes of which a key needs one, by operation; other operations are open."""

BODIES: Mapping[str, dict[str, Any]] = {
    "POST /v1/jobs": {"json": SPEC},
    "POST /v1/explain": {"json": {**SPEC, "sql": "nothing"}},
    "POST /v1/profiles": {"json": {"table": {"format": "parquet", "path": "nothing"}, "keys": [["a"]]}},
    "PATCH /v1/jobs/{job_id}/settings": {"json": {}},
    "PUT /v1/streams/{name}": {"json": {"schema": "a BIGINT"}},
    "POST /v1/streams/{name}/rows": {
        "content": "{}",
        "headers": {"Content-Type": "application/x-ndjson"},
        "params": {"batch_id": "1"},
    },
    "POST /v1/keys": {"json": {"name": "another"}},
}
"""Bodies and parameters of operations."""

OF_A_JOB = sorted(operation for operation in SCOPES if "{job_id}" in operation)


Bearer = Callable[..., dict[str, str]]


@pytest.fixture
def bearer(api: Api) -> Bearer:
    """Returns a function that creates a key with these scopes and returns its header."""

    def made(*scopes: KeyScope, tenant: str = "default") -> dict[str, str]:
        asked = KeyRequest(name="test", tenant=tenant, scopes=scopes or tuple(KeyScope))
        return {"Authorization": f"Bearer {issue_key(api.database, asked, None).key}"}

    return made


def asked(api: Api, operation: str, headers: Mapping[str, str], job_id: str = "x") -> Any:
    """Returns the response of an operation on missing resources, or on a job."""
    method, path = operation.split(" ")
    filled = path.format(job_id=job_id, name="unknown", worker_id="x", key_id="a" * 16)
    given = dict(BODIES.get(operation, {}))
    given["headers"] = {**given.pop("headers", {}), **headers}
    return api.client.request(method, filled, **given)


def test_every_operation_documents_its_scopes(authentication: str) -> None:
    found = {f"{method.upper()} {path}": operation for path, method, operation in operations()}
    open_to_all = {operation for operation in found if operation.split(" ")[1] in OPEN_PATHS}
    assert set(found) == set(SCOPES) | open_to_all
    assert {operation for operation, about in found.items() if about["security"]} == set(SCOPES)
    for operation in SCOPES:
        assert {"401", "403"} <= set(found[operation]["responses"]), operation
        assert found[operation]["security"] == [{"ApiKey": []}], operation
        # What any key may do names none.
        scopes = found[operation].get("x-scopes", list(KeyScope))
        assert set(scopes) == SCOPES[operation], operation


@pytest.mark.withstands(
    "a request without a key",
    kind="attack",
    how="every operation without a key",
    times=1,
    guaranteed="401, except for the open paths",
)
def test_a_request_without_a_key_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for operation in sorted(SCOPES):
        with subtests.test(operation=operation):
            answer = asked(api, operation, {})
            refused(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_request_without_a_key_does_not_reveal_which_paths_exist(api: Api, subtests: pytest.Subtests) -> None:
    for path in ("/nothing", "/v1", "/v1/jobs/%2e%2e/%2e%2e/healthz", "/v1/jobs/", "//healthz", "/docs"):
        with subtests.test(path=path):
            # A whole address: `//healthz` alone would name a host.
            assert api.client.get(f"{str(api.client.base_url).rstrip('/')}{path}").status_code == 401


def test_open_paths_need_no_key(api: Api) -> None:
    statuses = [api.client.get(path).status_code for path in ("/healthz", "/readyz", "/openapi.json")]
    assert statuses == [200, 503, 200]


@pytest.mark.withstands(
    "a readiness check without a key",
    kind="attack",
    how="/readyz without a key and with an unknown key",
    times=2,
    guaranteed="the response says which component is unavailable, without names, addresses or versions",
)
def test_unauthenticated_callers_get_no_details_of_readiness(
    api: Api, bearer: Bearer, subtests: pytest.Subtests
) -> None:
    cases: list[dict[str, str]] = [{}, {"Authorization": f"Bearer {make_secret().text}"}]
    for headers in cases:
        with subtests.test(headers=headers):
            facts = WorkerFacts(spark_state="unavailable", spark_fault="no master at spark://10.0.0.7:7077")
            with api.database.write() as session:
                workers.record_heartbeat(session, "host-17-worker", api.database.now(session), "0.1.0", facts)
            told, known = (api.client.get("/readyz", headers=shown) for shown in (headers, bearer(KeyScope.READ)))
            assert (told.status_code, known.status_code) == (503, 503)
            assert [issue["code"] for issue in told.json()["errors"]] == ["cluster"]
            assert "Send an API key" in told.json()["detail"]
            for name in ("host-17-worker", "10.0.0.7"):
                assert name in known.text
                assert name not in told.text


@pytest.mark.withstands(
    "a key without the required scope",
    kind="attack",
    how="every operation with every scope",
    times=1,
    guaranteed="403",
)
def test_a_key_permits_the_operations_of_its_scopes(api: Api, bearer: Bearer, subtests: pytest.Subtests) -> None:
    for scope in list(KeyScope):
        for operation in sorted(SCOPES):
            with subtests.test(scope=scope, operation=operation):
                answer = asked(api, operation, bearer(scope))
                if scope in SCOPES[operation]:
                    assert answer.status_code not in {401, 403}, answer.text
                else:
                    refused(answer, 403, "missing_scope")


def test_an_invalid_key_is_refused(api: Api, bearer: Bearer, subtests: pytest.Subtests) -> None:
    for header in (
        "",
        "Bearer",
        "Bearer ",
        "Basic {key}",
        "{key}",
        "Bearer {key}x",
        "Bearer {key} x",
        "Bearer ek_{zeros}",
        "bearer\t{key}",
    ):
        with subtests.test(header=header):
            key = bearer()["Authorization"].removeprefix("Bearer ")
            shown = header.format(key=key, zeros="a" * 16 + "_" + "0" * 43)
            assert api.client.get("/v1/jobs", headers={"Authorization": shown}).status_code == 401


def test_two_authorization_headers_are_refused(api: Api, bearer: Bearer) -> None:
    headers = [("Authorization", bearer()["Authorization"]), ("Authorization", bearer()["Authorization"])]
    assert api.client.get("/v1/jobs", headers=headers).status_code == 401


def test_bearer_is_accepted_in_any_letter_case(api: Api, bearer: Bearer) -> None:
    key = bearer()["Authorization"].removeprefix("Bearer ")
    assert api.client.get("/v1/jobs", headers={"Authorization": f"bearer  {key}"}).status_code == 200


def test_the_body_of_an_unauthenticated_request_is_not_read(api: Api) -> None:
    # As it is, it would be too large, and of the wrong type.
    answer = api.client.post("/v1/jobs", content=b"x" * 1_000_000, headers={"Content-Type": "text/html"})
    assert answer.status_code == 401


def test_a_revoked_key_is_refused(api: Api, bearer: Bearer) -> None:
    headers = bearer()
    key_id = api.client.get("/v1/me", headers=headers).json()["key_id"]
    revoke_key(api.database, key_id, allow_last_admin=True)
    assert api.client.get("/v1/me", headers=headers).status_code == 200  # remembered for a few seconds
    api.app.state.services.key_ring._known.clear()
    answer = api.client.get("/v1/me", headers=headers)
    assert answer.status_code == 401
    assert headers["Authorization"].removeprefix("Bearer ") not in answer.text


@pytest.mark.withstands(
    "a tenant guesses the ids of another tenant's jobs",
    kind="attack",
    how="every operation on a job, with a key of another tenant",
    times=1,
    guaranteed="404, exactly as for a job that does not exist",
)
def test_a_job_of_another_tenant_is_not_found(api: Api, bearer: Bearer) -> None:
    job_id = lifecycle.insert(api.database, tenant="sales")
    lifecycle.run_whole(api.database, job_id, api.settings.results_dir, pa.table({"uid": [1]}))
    mine, other = bearer(tenant="sales"), bearer(tenant="marketing")
    for operation in OF_A_JOB:
        answer = asked(api, operation, other, job_id)
        assert answer.status_code == 404, operation
        # Word for word what is said of a job that nobody has.
        nobody = asked(api, operation, other, "0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a")
        assert _without_ids(answer.json()) == _without_ids(nobody.json()), operation
    assert api.client.get(f"/v1/jobs/{job_id}", headers=mine).json()["status"] == "SUCCEEDED"


def _without_ids(problem: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in problem.items() if name not in {"instance", "request_id", "detail"}}


def test_a_list_contains_only_jobs_of_the_tenant(api: Api, bearer: Bearer) -> None:
    ids = {tenant: lifecycle.insert(api.database, tenant=tenant) for tenant in ("sales", "marketing")}
    for tenant, job_id in ids.items():
        listed = api.client.get("/v1/jobs", headers=bearer(tenant=tenant)).json()["jobs"]
        assert [job["id"] for job in listed] == [job_id]


@pytest.mark.withstands(
    "an idempotency key of another tenant",
    kind="attack",
    how="two tenants send the same key",
    times=1,
    guaranteed="each gets its own job",
)
@pytest.mark.both_databases
def test_idempotency_keys_of_tenants_are_separate(api: Api, bearer: Bearer) -> None:
    def submitted(tenant: str, **changes: object) -> Any:
        headers = {**bearer(tenant=tenant), "Idempotency-Key": "nightly"}
        return api.client.post("/v1/jobs", json={**SPEC, **changes}, headers=headers)

    one, other = submitted("sales"), submitted("marketing", name="another")
    assert (one.status_code, other.status_code) == (202, 202)
    assert one.json()["id"] != other.json()["id"]
    assert submitted("sales").headers["idempotency-replayed"] == "true"


@pytest.mark.both_databases
def test_streams_of_tenants_are_separate(api: Api, bearer: Bearer) -> None:
    sales, marketing = bearer(tenant="sales"), bearer(tenant="marketing")
    for headers, schema in ((sales, "a BIGINT"), (marketing, "b STRING")):
        assert api.client.put("/v1/streams/clicks", json={"schema": schema}, headers=headers).status_code == 201
    assert api.client.delete("/v1/streams/clicks", headers=marketing).status_code == 204
    assert api.client.get("/v1/streams/clicks", headers=sales).json()["schema"] == "a BIGINT"
    assert api.client.get("/v1/streams", headers=marketing).json()["streams"] == []


def test_a_worker_shows_only_jobs_of_the_tenant(api: Api, bearer: Bearer) -> None:
    lifecycle.beat(api.database)
    job_id = lifecycle.insert(api.database, tenant="sales")
    lifecycle.claim(api.database, job_id)
    for tenant, expected in (("sales", [job_id]), ("marketing", [])):
        (worker,) = api.client.get("/v1/workers", headers=bearer(tenant=tenant)).json()["workers"]
        assert [job["id"] for job in worker["jobs"]] == expected


@pytest.mark.withstands(
    "a key is revoked during an open event stream",
    kind="attack",
    how="the key is revoked while its stream is open",
    times=1,
    guaranteed="the stream ends",
)
@pytest.mark.timeout(60)
def test_an_event_stream_ends_when_its_key_is_revoked(
    api: Api, bearer: Bearer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = lifecycle.insert(api.database)
    monkeypatch.setattr("service.api.results._HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr("service.keys.verification.CACHE_SECONDS", 0.0)
    headers = bearer()
    key_id = api.client.get("/v1/me", headers=headers).json()["key_id"]
    holds = KeyRing.holds

    def revoked_meanwhile(ring: KeyRing, principal: Any) -> bool:
        revoke_key(api.database, key_id, allow_last_admin=True)
        return holds(ring, principal)

    monkeypatch.setattr(KeyRing, "holds", revoked_meanwhile)
    # It returns, although the job never ends.
    assert "QUEUED" in api.client.get(f"/v1/jobs/{job_id}/events", headers=headers).text


def test_a_long_request_is_refused_if_its_key_was_revoked_meanwhile(
    api: Api, bearer: Bearer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = lifecycle.insert(api.database)
    monkeypatch.setattr("service.keys.verification.CACHE_SECONDS", 0.0)
    headers = bearer()
    key_id = api.client.get("/v1/me", headers=headers).json()["key_id"]
    read = KnownJobs.read

    def revoked_meanwhile(*given: Any) -> Any:
        revoke_key(api.database, key_id, allow_last_admin=True)
        return read(*given)

    monkeypatch.setattr(KnownJobs, "read", revoked_meanwhile)
    answer = api.client.get(f"/v1/jobs/{job_id}", headers={**headers, "Prefer": "wait=1"})
    refused(answer, 401, "unauthenticated")
