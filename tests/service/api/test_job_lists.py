"""Lists of jobs: pages, filters, fields and cursors."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import event

from service.jobs.views import encode_cursor
from tests.support import lifecycle
from tests.support.api import Api, refused
from tests.support.lifecycle import SPEC

ID = "00000000-0000-0000-0000-000000000000"
ODD_NAMES = (
    "\u202egpj.exe",
    "\u2066x\u2069",
    "\u200b",
    "a\u200db",
    "\ufeff",
    "\u2028",
    "a\x85b",
    "\x9b31m",
    "e\u0301",
    "\u00e9",
    "\U0001f642" * 100,
    "\U0010ffff",
    "\ufffe",
    " ",
    "<script>alert(1)</script>",
    "a`'\"\\%_;--",
)


def code(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["code"])


class TestList:
    @pytest.mark.both_databases
    def test_pages_newest_first_without_gaps(self, api: Api) -> None:
        ids = [api.submit(name=f"job-{index}").json()["id"] for index in range(7)]
        seen: list[str] = []
        cursor = ""
        for _ in range(4):
            page = api.client.get("/v1/jobs", params={"page_size": 2, "cursor": cursor}).json()
            seen += [job["id"] for job in page["jobs"]]
            cursor = page["next_cursor"]
            # A newcomer must not shift the pages.
            api.submit(name="late")
        assert cursor == ""
        assert set(seen) == set(ids)
        assert len(seen) == 7

    def test_contains_no_specs_and_no_explanations(self, api: Api) -> None:
        lifecycle.insert(api.database, kind="explain")
        lifecycle.insert(api.database, tenant="someone else")
        lifecycle.insert(api.database, name="mine")
        jobs = api.client.get("/v1/jobs").json()["jobs"]
        assert [job["name"] for job in jobs] == ["mine"]
        assert "spec" not in jobs[0]

    @pytest.mark.both_databases
    def test_filters(self, api: Api) -> None:
        one = lifecycle.insert(api.database, name="orders-1")
        two = lifecycle.insert(api.database, name="orders-2")
        three = lifecycle.insert(api.database, name="Orders_3")
        lifecycle.claim(api.database, two)
        lifecycle.fail(api.database, lifecycle.claim(api.database, three))

        def ids(**parameters: object) -> set[str]:
            answer = api.client.get("/v1/jobs", params=parameters)
            assert answer.status_code == 200, answer.text
            return {job["id"] for job in answer.json()["jobs"]}

        assert ids(name="orders-") == {one, two}
        assert ids(name="orders_") == set()
        assert ids(status="QUEUED") == {one}
        assert ids(status=["PLANNING", "FAILED"]) == {two, three}
        assert ids(submitted_after="2000-01-01T00:00:00Z") == {one, two, three}
        assert ids(submitted_before="2000-01-01T00:00:00+01:00") == set()
        assert ids(page_size=100_000) == {one, two, three}

    def test_an_expired_lease_reads_as_queued(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.claim(api.database, job_id, lease_ms=-1)
        assert api.client.get("/v1/jobs", params={"status": "QUEUED"}).json()["jobs"][0]["id"] == job_id
        assert api.client.get("/v1/jobs", params={"status": "PLANNING"}).json()["jobs"] == []
        assert api.client.get(f"/v1/jobs/{job_id}").json()["status"] == "QUEUED"

    def test_bad_parameters(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[dict[str, str | int]] = [
            {"name": "a\0"},
            {"page_size": 0},
            {"page_size": -1},
            {"status": "SLEEPING"},
            {"submitted_after": "yesterday"},
            {"submitted_after": "0.5"},
            {"submitted_before": "1767225600"},
            {"submitted_before": "1767225600000"},
            {"submitted_after": "2026-01-01T00:00:00"},
        ]
        for parameters in cases:
            with subtests.test(parameters=parameters):
                answer = api.client.get("/v1/jobs", params=parameters)
                refused(answer, 422, "invalid_request")
                assert answer.json()["errors"][0]["pointer"].startswith("/query/")

    @pytest.mark.withstands(
        "forged cursors",
        kind="attack",
        how="numbers of thirty digits, negative numbers, texts with U+0000 and lone surrogates, other types, and "
        "arbitrary text",
        times=14,
        guaranteed="400 `invalid_cursor`",
    )
    def test_a_forged_cursor(self, api: Api, subtests: pytest.Subtests) -> None:
        numbers: list[list[int | str]] = [[10**30, ID], [-(10**30), ID]]
        texts: list[list[int | str]] = [[1, text] for text in ("\0", "\ud800", "x" * 300, "")]
        made_up = ("x", "ÿ", "W10", "bnVsbA", "e30", "WyJhIiwxXQ", "[" * 300, "a" * 1024)
        for cursor in (*(encode_cursor(position, "jobs||None|None|") for position in (*numbers, *texts)), *made_up):
            with subtests.test(cursor=cursor):
                refused(api.client.get("/v1/jobs", params={"cursor": cursor}), 400, "invalid_cursor")

    @pytest.mark.withstands(
        "a cursor used for another list",
        kind="attack",
        how="a cursor of another list or filter, shortened, lengthened, or with changed letters",
        times=8,
        guaranteed="400 `invalid_cursor`; an invented position shows only the caller's own jobs",
    )
    def test_a_cursor_of_another_list_is_refused(self, api: Api) -> None:
        for _ in range(3):
            api.submit()
        job_id = api.client.get("/v1/jobs").json()["jobs"][0]["id"]
        cursor = api.client.get("/v1/jobs", params={"page_size": 1}).json()["next_cursor"]
        for path in ("/v1/streams?", f"/v1/jobs/{job_id}/result?", f"/v1/jobs/{job_id}/batches?", "/v1/jobs?name=x&"):
            answer = api.client.get(f"{path}cursor={cursor}")
            assert (answer.status_code, code(answer)) == (400, "invalid_cursor"), path
        for changed in (cursor[:-1], f"{cursor}A", cursor.swapcase(), f"{cursor}====="):
            answer = api.client.get("/v1/jobs", params={"cursor": changed})
            assert (answer.status_code, code(answer)) == (400, "invalid_cursor"), changed

    @pytest.mark.withstands(
        "unusual characters in names",
        kind="attack",
        how="bidirectional, zero-width and control characters, unassigned, composed and decomposed ones, characters "
        "of 4 bytes, and HTML: in names of jobs, tables, aliases and columns and in filters, on both databases",
        times=16,
        guaranteed="they are returned exactly, as JSON that no browser shows as a page",
    )
    @pytest.mark.both_databases
    def test_unusual_names_are_returned_unchanged(self, api: Api, subtests: pytest.Subtests) -> None:
        for name in ODD_NAMES:
            with subtests.test(name=name):
                query = {
                    "source": {"kind": "table", "table": name, "alias": name},
                    "group_by": [{"expression": "uid", "name": name}],
                    "aggregates": [{"function": "COUNT", "name": f"{name[:200]}2"}],
                }
                posted = {"name": name, "tables": {name: SPEC["tables"]["orders"]}, "query": query}
                answer = api.client.post("/v1/jobs", json=posted)
                assert answer.status_code == 202, answer.text
                read = api.client.get(answer.headers["location"])
                spec = read.json()["spec"]
                assert (read.json()["name"], spec["name"], list(spec["tables"])) == (name, name, [name])
                assert spec["query"]["source"]["alias"] == spec["query"]["group_by"][0]["name"] == name
                assert read.headers["content-type"] == "application/json"
                assert read.headers["x-content-type-options"] == "nosniff"
                listed = api.client.get("/v1/jobs", params={"name": name}).json()["jobs"]
                assert [job["name"] for job in listed] == [name]
                quoted = name.replace("`", "``")
                sql = {"tables": {name: SPEC["tables"]["orders"]}, "sql": f"SELECT uid AS `{quoted}` FROM `{quoted}`"}
                assert api.client.post("/v1/jobs", json=sql).status_code == 202

    @pytest.mark.withstands(
        "characters that a database cannot hold",
        kind="attack",
        how="U+0000 and lone surrogates in every text of a job, in paths, filters and headers",
        times=18,
        guaranteed="4xx, and nothing is stored",
    )
    @pytest.mark.both_databases
    def test_characters_that_cannot_be_stored_are_refused(self, api: Api, subtests: pytest.Subtests) -> None:
        for bad in ("a\0b", "\ud800", "\udfff\ud800"):
            with subtests.test(bad=bad):
                table = SPEC["tables"]["orders"]
                for body in (
                    {**SPEC, "name": bad},
                    {**SPEC, "sql": f"SELECT uid AS `{bad}` FROM orders"},
                    {"tables": {bad: table}, "sql": "SELECT 1 AS x FROM orders"},
                    {"tables": {"orders": {**table, "path": bad}}, "sql": SPEC["sql"]},
                ):
                    content = json.dumps(body).encode()
                    answer = api.client.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
                    assert (answer.status_code, code(answer)) == (422, "invalid_request"), body
                encoded = quote(bad, errors="surrogatepass")
                for path in (f"/v1/jobs/{encoded}", f"/v1/jobs/{encoded}/events", f"/v1/workers/{encoded}"):
                    assert api.client.get(path).status_code == 404
                for path in (f"/v1/streams/{encoded}", f"/v1/jobs?cursor={encoded}"):
                    assert api.client.get(path).status_code in {400, 422}
                assert api.client.get("/v1/jobs").json()["jobs"] == []

    @pytest.mark.withstands(
        "malformed headers",
        kind="attack",
        how="invalid bytes, unterminated quotes and lists of thousands of values in conditional, range and preference "
        "headers, and keys of thousands of characters",
        times=36,
        guaranteed="the same response as without them, or 4xx",
    )
    def test_malformed_headers_cause_no_server_error(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[bytes] = [b"\xff\xfe", b'"' * 5000, b'W/"' * 2000, b"*,* \xff", b"bytes=0-1," * 500, b"9" * 5000]
        for given in cases:
            with subtests.test(given=given):
                job = api.submit().json()
                path = f"/v1/jobs/{job['id']}"
                for header in ("If-None-Match", "Range", "Prefer", "X-Request-Id"):
                    answer = api.client.get(path, headers={header: given})
                    assert (answer.status_code, answer.json()) == (200, job), header
                answer = api.client.get(f"{path}/events", headers={"Last-Event-ID": given})
                refused(answer, 422, "invalid_request")
                taken = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": given})
                refused(taken, 422, "invalid_request")

    def test_no_spec_is_read(self, api: Api) -> None:
        lifecycle.insert(api.database)
        statements: list[str] = []
        event.listen(api.database.engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
        assert len(api.client.get("/v1/jobs").json()["jobs"]) == 1
        assert not any(re.search(r"\bjobs\.spec\b", statement) for statement in statements)
