"""Requests that pages of other sites make browsers send are refused."""

from __future__ import annotations

import pytest

from tests.support.api import Api, refused
from tests.support.lifecycle import SPEC


def test_hosts_of_the_service_are_accepted(api: Api, subtests: pytest.Subtests) -> None:
    for host in ("127.0.0.1", "127.0.0.1:8080", "localhost:1", "[::1]:8080", "LOCALHOST"):
        with subtests.test(host=host):
            assert api.client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.withstands(
    "DNS rebinding",
    kind="attack",
    how="a request with the Host header of another site",
    times=5,
    guaranteed="421",
)
def test_another_host_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", ":80"):
        with subtests.test(host=host):
            answer = api.client.get("/healthz", headers={"Host": host})
            refused(answer, 421, "host_not_allowed")
            assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.withstands(
    "cross-site request forgery",
    kind="attack",
    how="changing requests with the Origin of another site",
    times=24,
    guaranteed="403",
)
def test_changes_from_pages_of_other_sites_are_refused(api: Api, subtests: pytest.Subtests) -> None:
    method_cases: list[tuple[str, str]] = [("POST", "/v1/jobs"), ("POST", "/v1/jobs/x/cancel"), ("DELETE", "/v1/x")]
    for method, path in method_cases:
        for origin in (
            "http://evil.example",
            "null",
            "https://localhost.evil.example:8080",
            "http://[",
            "http://127.0.0.1:3000",
            "http://localhost:8080",
            "ftp://127.0.0.1:8080",
            "http://127.0.0.1:8080@evil.example",
        ):
            with subtests.test(method=method, path=path, origin=origin):
                answer = api.client.request(method, path, headers={"Host": "127.0.0.1:8080", "Origin": origin})
                refused(answer, 403, "origin_not_allowed")


def test_changes_from_pages_of_the_service_are_accepted(api: Api) -> None:
    headers = {"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080"}
    assert api.client.post("/v1/jobs", json=SPEC, headers=headers).status_code == 202
