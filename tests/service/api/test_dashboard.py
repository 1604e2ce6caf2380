"""The dashboard's page over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from service.api.app import create_app
from service.api.dashboard import bundle
from service.config.settings import Settings
from tests.support.api import Api, refused, specification

SCRIPT = f"/dashboard/{bundle().version}/js/main.js"


def test_the_page_has_a_strict_content_security_policy(api: Api) -> None:
    answer = api.client.get("/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Cache-Control"] == "no-cache"


def test_a_file_is_cached_forever_only_under_its_version(api: Api) -> None:
    assert "immutable" in api.client.get(SCRIPT).headers["Cache-Control"]
    of_another_release = api.client.get("/dashboard/0123456789abcdef/js/main.js")
    assert (of_another_release.status_code, of_another_release.headers["Cache-Control"]) == (200, "no-cache")


def test_unknown_query_parameters_are_ignored(api: Api) -> None:
    assert [api.client.get(f"{path}?utm_source=mail").status_code for path in ("/", SCRIPT)] == [200, 200]


def test_a_known_etag_gives_304(api: Api) -> None:
    tag = api.client.get("/").headers["ETag"]
    again = api.client.get("/", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert api.client.get("/", headers={"If-None-Match": '"another"'}).status_code == 200


def test_files_are_compressed_if_the_client_accepts_gzip(api: Api) -> None:
    plain = api.client.get(SCRIPT, headers={"Accept-Encoding": "identity"})
    small = api.client.get(SCRIPT, headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert small.headers["Content-Encoding"] == "gzip"
    assert small.content == plain.content
    assert int(small.headers["Content-Length"]) < int(plain.headers["Content-Length"])
    assert small.headers["ETag"] == plain.headers["ETag"]


def test_accept_encoding_decides_about_compression(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, bool]] = [
        ("gzip", True),
        ("br, GZIP;q=0.5, deflate", True),
        ("deflate, gzip; q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, identity", False),
        ("x-gzip-not", False),
        ("", False),
    ]
    for accepted, is_small in cases:
        with subtests.test(accepted=accepted, is_small=is_small):
            answer = api.client.get(SCRIPT, headers={"Accept-Encoding": accepted})
            assert ("Content-Encoding" in answer.headers) is is_small


def test_other_files_are_not_found(api: Api, subtests: pytest.Subtests) -> None:
    for path in (
        "nothing.js",
        "index.html",
        "../__init__.py",
        "..%2f..%2f..%2fsettings.py",
        "js/../../__init__.py",
        "%2fetc%2fpasswd",
        "js",
        "",
    ):
        with subtests.test(path=path):
            answer = api.client.get(f"/dashboard/{bundle().version}/{path}")
            refused(answer, 404, "not_found")


@pytest.mark.parametrize("authentication", ["on"])
def test_the_page_needs_no_key(api: Api) -> None:
    assert api.client.get("/").status_code == 200
    assert api.client.get(SCRIPT).status_code == 200
    assert api.client.get("/v1/jobs").status_code == 401
    assert api.client.get("//v1/jobs").status_code in (401, 404)


def test_it_is_not_in_the_openapi_document() -> None:
    assert not {path for path in specification()["paths"] if "dashboard" in path or path == "/"}


def test_it_can_be_disabled(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_DASHBOARD", "false")
    with TestClient(create_app(Settings(), api.database), base_url="http://localhost") as client:
        assert client.get("/").status_code == 404
        assert client.get(SCRIPT).status_code == 404
        assert client.get("/healthz").status_code == 200
