"""What other sites have browsers send is refused before anything else is looked at."""

from __future__ import annotations

import pytest

from tests.support.api import Api
from tests.support.lifecycle import SPEC

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "[::1]:8080", "LOCALHOST"])
def test_a_name_of_this_service_is_served(api: Api, host: str) -> None:
    assert api.client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.withstands(
    "DNS rebinding",
    kind="attack",
    how="a request that names another host",
    times=5,
    guaranteed="421",
)
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", ":80"])
def test_another_host_is_refused(api: Api, host: str) -> None:
    answer = api.client.get("/healthz", headers={"Host": host})
    assert answer.status_code == 421
    assert answer.json()["code"] == "host_not_allowed"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.withstands(
    "cross-site request forgery",
    kind="attack",
    how="changes with the Origin of another site",
    times=24,
    guaranteed="403",
)
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://localhost.evil.example:8080",
        "http://[",
        # What else listens on this machine is another site.
        "http://127.0.0.1:3000",
        "http://localhost:8080",
        "ftp://127.0.0.1:8080",
        "http://127.0.0.1:8080@evil.example",
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/jobs"), ("POST", "/v1/jobs/x/cancel"), ("DELETE", "/v1/x")])
def test_a_page_of_another_site_may_change_nothing(api: Api, method: str, path: str, origin: str) -> None:
    answer = api.client.request(method, path, headers={"Host": "127.0.0.1:8080", "Origin": origin})
    assert answer.status_code == 403
    assert answer.json()["code"] == "origin_not_allowed"


def test_a_page_of_this_service_may(api: Api) -> None:
    headers = {"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080"}
    assert api.client.post("/v1/jobs", json=SPEC, headers=headers).status_code == 202
