"""Bodies that are refused before a route runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.request_bodies import MAX_NESTING, BodyCheck
from tests.support.api import Api, refused, specification
from tests.support.lifecycle import SPEC

JSON = {"Content-Type": "application/json"}


def test_media_types_other_than_json_are_refused(api: Api, subtests: pytest.Subtests) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp", "application/xml"):
        with subtests.test(media_type=media_type):
            answer = api.client.post("/v1/jobs", content=json.dumps(SPEC), headers={"Content-Type": media_type})
            refused(answer, 415, "unsupported_media_type")


def test_a_merge_patch_is_accepted_only_for_patch(api: Api) -> None:
    headers = {"Content-Type": "application/merge-patch+json"}
    answer = api.client.post("/v1/jobs", content=json.dumps(SPEC), headers=headers)
    assert answer.status_code == 415
    assert "merge-patch" not in answer.json()["detail"]
    answer = api.client.patch("/v1/jobs/x/settings", content="{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert "'Content-Type: application/merge-patch+json'" in answer.json()["detail"]
    told = specification()["paths"]["/v1/jobs/{job_id}/settings"]["patch"]["requestBody"]
    # Of two types, generators of clients choose badly.
    assert set(told["content"]) == {"application/merge-patch+json"}


def test_json_with_a_charset_is_accepted(api: Api) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert api.client.post("/v1/jobs", content=json.dumps(SPEC), headers=headers).status_code == 202


def test_a_large_body_is_refused_by_its_declared_length(api: Api) -> None:
    answer = api.client.post("/v1/jobs", content=b" " * 20_001, headers=JSON)
    refused(answer, 413, "body_too_large")


@pytest.mark.withstands(
    "an endless request body",
    kind="attack",
    how="chunks beyond the limit",
    times=1,
    guaranteed="413 before the whole body is read",
)
def test_a_large_body_is_refused_while_it_streams(api: Api) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    answer = api.client.post("/v1/jobs", content=chunks(), headers=JSON)
    refused(answer, 413, "body_too_large")


def test_the_chunks_of_a_body_are_joined(api: Api) -> None:
    text = json.dumps(SPEC).encode()
    answer = api.client.post("/v1/jobs", content=iter([text[:10], text[10:11], text[11:]]), headers=JSON)
    assert answer.status_code == 202


@pytest.mark.withstands(
    "deep nesting",
    kind="attack",
    how="an endless body of opening brackets",
    times=1,
    guaranteed="422 in time linear in its length",
)
def test_deep_nesting_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for opening in (b"[", b'{"a":', b'[{"a":'):
        with subtests.test(opening=opening):
            answer = api.client.post("/v1/jobs", content=opening * 3000, headers=JSON)
            refused(answer, 422, "nesting_too_deep")


def test_brackets_in_strings_do_not_count_as_nesting(api: Api) -> None:
    name = '["\\' * 30 + "{" * MAX_NESTING
    answer = api.client.post("/v1/jobs", json={**SPEC, "name": name})
    assert answer.status_code == 202, answer.text


def test_adjacent_brackets_do_not_count_as_nesting(api: Api) -> None:
    answer = api.client.post("/v1/jobs", content=b"[" + b"[]," * 1000 + b"[]]", headers=JSON)
    assert answer.json()["code"] == "invalid_request"


def test_the_limit_of_nesting_is_exact(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, str]] = [(MAX_NESTING, "invalid_request"), (MAX_NESTING + 1, "nesting_too_deep")]
    for depth, refusal in cases:
        with subtests.test(depth=depth, refusal=refusal):
            answer = api.client.post("/v1/jobs", content=b"[" * depth + b"]" * depth, headers=JSON)
            assert answer.json()["code"] == refusal


def test_a_duplicate_key_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for given in (
        '{"agg_phase": "ONE_PHASE", "agg_phase": "TWO_PHASE"}',
        '{"agg_phase": "AUTO", "agg_phase": "AUTO"}',
        '{"agg_phase": "AUTO", "agg\\u005fphase": "AUTO"}',
    ):
        with subtests.test(given=given):
            text = json.dumps(SPEC)[:-1] + f', "settings": {given}}}'
            answer = api.client.post("/v1/jobs", content=text, headers=JSON)
            refused(answer, 422, "duplicate_key")
            assert "agg_phase" in answer.json()["detail"]


def test_the_body_is_not_checked_without_a_route(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[bytes] = [b"<a/>", b" " * 20_001, b"{", b"{}"]
    for content in cases:
        with subtests.test(content=content):
            headers = {"Content-Type": "text/plain"}
            answer = api.client.put("/v1/streams/clicks/rows", content=content, headers=headers)
            assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
            assert api.client.post("/v1/nothing", content=content, headers=headers).json()["code"] == "not_found"


def test_json_in_another_encoding_is_refused(api: Api, subtests: pytest.Subtests) -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-32-be"):
        with subtests.test(encoding=encoding):
            answer = api.client.post("/v1/jobs", content=json.dumps(SPEC).encode(encoding), headers=JSON)
            refused(answer, 400, "malformed_json")


def test_characters_that_cannot_be_stored_are_refused(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"sql": "SELECT '\0' AS x FROM orders"}, "/sql"),
        ({"tables": {"orders": {"format": "parquet", "path": "\ud800"}}}, "/tables/orders/path"),
        ({"settings": {"agg_phase\udfff": 1}}, "/settings"),
        ({"a/b~": ["", "\0"]}, "/a~1b~0/1"),
    ]
    for changes, pointer in cases:
        with subtests.test(changes=changes, pointer=pointer):
            answer = api.client.post("/v1/jobs", content=json.dumps({**SPEC, **changes}), headers=JSON)
            refused(answer, 422, "invalid_request")
            assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_complete_surrogate_pair_is_accepted(api: Api) -> None:
    text = json.dumps({**SPEC, "name": "\U0001f600"})
    assert "\\ud83d" in text
    assert api.client.post("/v1/jobs", content=text, headers=JSON).json()["name"] == "\U0001f600"


def test_a_disconnect_during_the_body_ends_the_request(api: Api) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": json.dumps(SPEC).encode(), "more_body": True},
        {"type": "http.disconnect"},
    ]
    asked: list[Scope] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope)

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "headers": headers}
    asyncio.run(BodyCheck(application, api.settings.api)(scope, receive, send))
    assert asked == []


def test_checking_a_body_is_fast(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[bytes] = [b'"\\"' * 6000 + b"[" * 1000, b'[{"' * 33 + b'\\"' * 9000, b"\\" * 15_000 + b"{" * 99]
    for body in cases:
        with subtests.test(body=body):
            started = time.monotonic()
            answer = api.client.post("/v1/jobs", content=body, headers=JSON)
            assert answer.status_code in {400, 422}
            assert time.monotonic() - started < 10
