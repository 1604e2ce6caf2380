"""Every error is a problem with a stable code; errors in a job have their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from service.store.session import CommitUnknownError
from tests.support.api import Api, refused
from tests.support.lifecycle import SPEC

NO_TIME = 2**60
"""Milliseconds after the last year that a date can have; no version stores such a time."""


def table(path: str, format: str = "parquet", **more: object) -> dict[str, object]:  # noqa: A002
    return {"orders": {"format": format, "path": path, **more}}


class TestJobs:
    """Errors in the job itself."""

    @pytest.mark.parametrize("path", ["/v1/jobs", "/v1/explain"])
    def test_a_wrong_job_is_refused_with_a_code(self, api: Api, path: str, subtests: pytest.Subtests) -> None:
        root = api.settings.data_roots[0]
        (root / "empty").mkdir()
        (root / "bad.parquet").write_bytes(b"PAR1 and nothing else")
        (root / "link.parquet").symlink_to(Path("/nonexistent/target.parquet"))
        (root / "mixed").mkdir()
        for name, value in (("a", 1), ("b", "one")):
            pq.write_table(pa.table({"uid": [value]}), root / "mixed" / f"{name}.parquet")
        (root / "a.csv").write_text("1\n")
        cases: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
            ({"sql": "SELECT COUNT(*) AS n FROM order"}, "unknown_table", {"suggestions": ["orders"]}),
            ({"sql": "SELECT amuont FROM orders"}, "unknown_column", {"suggestions": ["amount"], "line": 1}),
            ({"sql": "SELECT SUM(uid = 1) AS s FROM orders"}, "type_mismatch", {}),
            ({"sql": "SELECT uid, RANK() OVER () AS r FROM orders"}, "unsupported_construct", {}),
            ({"sql": "SELECT uid\nFROM orders WHERE )"}, "sql_syntax", {"line": 2, "column": 19}),
            ({"sql": None}, "sql_or_query", {}),
            ({"tables": table("../secret.parquet")}, "path_outside_data_roots", {}),
            ({"tables": table("/etc/passwd")}, "path_outside_data_roots", {}),
            ({"tables": table("sub/../../x.parquet")}, "path_outside_data_roots", {}),
            ({"tables": table("link.parquet")}, "path_outside_data_roots", {}),
            ({"tables": table("nowhere.parquet")}, "path_not_found", {}),
            ({"tables": table("empty")}, "empty_directory", {}),
            ({"tables": table("bad.parquet")}, "corrupt_file", {}),
            ({"tables": table("mixed")}, "schema_mismatch", {}),
            ({"tables": table("a.csv", "csv", schema="uid WHATEVER")}, "invalid_schema", {}),
            ({"tables": table("a.csv", "csv", columns={"uid": "INT"})}, "unknown_column", {}),
            ({"tables": table("orders.parquet", schema="uid BIGINT")}, "schema_not_applicable", {}),
            (
                {"settings": {"distinct_split.bucket_num": 65537}},
                "invalid_request",
                {"pointer": "/settings/distinct_split/bucket_num", "code": "less_than_equal"},
            ),
            ({"settings": {"agg_phse": "AUTO"}}, "unknown_setting", {"pointer": "/settings/agg_phse"}),
            (
                {"settings": {"agg_phase": "ONE_PHASE", "table.optimizer.agg-phase-strategy": "TWO_PHASE"}},
                "contradicting_settings",
                {},
            ),
        ]
        for changes, code, expected in cases:
            with subtests.test(changes=changes):
                issue = refused(api.client.post(path, json={**SPEC, **changes}), 422, code)["errors"][0]
                assert {name: issue[name] for name in expected} == expected

    def test_every_invalid_field_is_reported_without_its_value(self, api: Api) -> None:
        answer = api.submit(limits={"timeout": "hunter2", "max_attempts": "hunter2"}, mode="hunter2")
        problem = refused(answer, 422, "invalid_request")
        pointers = {issue["pointer"] for issue in problem["errors"]}
        assert pointers == {"/limits/timeout", "/limits/max_attempts", "/mode"}
        assert "hunter2" not in answer.text

    def test_similar_fields_are_suggested(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"settings/~": {}}, "/settings~1~0", "settings"),
            ({"tables": table("a.csv", "csv", schema="a INT", rolle="stream")}, "/tables/orders/rolle", "role"),
            (
                {"tables": table("a.csv", "csv", schema="a INT", options={"delimeter": ";"})},
                "/tables/orders/options/delimeter",
                "delimiter",
            ),
            ({"tables": table("orders.parquet", shema="a INT")}, "/tables/orders/shema", "schema"),
            ({"limits": {"max_atempts": 2}}, "/limits/max_atempts", "max_attempts"),
            (
                {"sql": None, "query": {"source": {"kind": "table", "table": "orders"}, "wher": "a"}},
                "/query/wher",
                "where",
            ),
            # An option of text files in the wrong place, and what is none elsewhere.
            ({"tables": table("a.csv", "csv", schema="a INT", sep=";")}, "/tables/orders/sep", ""),
            ({"limits": {"header": True}}, "/limits/header", ""),
        ]
        for changes, pointer, meant in cases:
            with subtests.test(changes=changes):
                problem = refused(api.submit(**changes), 422, "invalid_request")
                (issue,) = [issue for issue in problem["errors"] if issue["code"] == "extra_forbidden"]
                assert issue["pointer"] == pointer
                assert not meant or issue["suggestions"][0] == meant
                assert ("Did you mean" in issue["detail"]) is bool(meant)
                assert ('"options": {"delimiter": …}' in issue["detail"]) is (pointer == "/tables/orders/sep")
        problem = refused(api.client.post("/v1/jobs/x/resume", json={"form": "scratch"}), 422, "invalid_request")
        assert problem["errors"][0]["suggestions"] == ["from"]

    def test_a_list_with_an_invalid_item_is_not_reported_as_too_short(self, api: Api) -> None:
        def union(*queries: object) -> dict[str, Any]:
            source = {"kind": "union_all", "alias": "u", "queries": list(queries)}
            body = {key: value for key, value in SPEC.items() if key != "sql"}
            return refused(
                api.client.post("/v1/jobs", json={**body, "query": {"source": source}}), 422, "invalid_request"
            )

        good = {"source": {"kind": "table", "table": "orders"}}
        wrong = {**good, "limit": -1}
        (issue,) = union(good, wrong)["errors"]
        assert issue["pointer"].endswith("/queries/1/limit")
        assert [issue["code"] for issue in union(good)["errors"]] == ["too_short"]

    def test_a_field_that_is_no_object_has_an_example(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"tables": []}, '/tables: Give an object. It has each table by its name: {"f": {"path": "flights/"}}.'),
            (
                {"tables": {"o": "orders"}},
                '/tables/o: Give an object. It has the path of the table: {"path": "flights/"}.',
            ),
            ({"sql": None, "query": "SELECT 1"}, "/query: Give an object. Write SQL into 'sql'."),
            ({"limits": []}, "/limits: Give an object."),
        ]
        for changes, detail in cases:
            with subtests.test(changes=changes):
                assert refused(api.submit(**changes), 422, "invalid_request")["detail"] == detail

    def test_an_option_of_text_files_in_the_wrong_place(self, api: Api) -> None:
        problem = refused(api.submit(tables=table("a.csv", "csv", nullValue="-")), 422, "invalid_request")
        detail = problem["errors"][0]["detail"]
        assert detail == 'There is no field \'nullValue\' here. Write "options": {"null_value": …}.'

    def test_the_name_of_an_option_elsewhere_gets_no_hint(self, api: Api) -> None:
        problem = refused(api.submit(limits={"header": True}), 422, "invalid_request")
        assert problem["errors"][0]["detail"] == "There is no field 'header' here."


class TestRequests:
    """Errors in the request."""

    def test_an_unknown_path(self, api: Api, subtests: pytest.Subtests) -> None:
        for path in ("/v1", "/v1/jobs/", "/v2/jobs", "/v1/jobs/x/y/z", "/%00"):
            with subtests.test(path=path):
                refused(api.client.get(path), 404, "not_found")

    def test_a_method_that_is_not_allowed(self, api: Api) -> None:
        answer = api.client.put("/v1/jobs", json={})
        refused(answer, 405, "method_not_allowed")
        assert answer.json()["detail"].endswith(f"use {answer.headers['Allow']}.")
        assert answer.headers["allow"] == "GET, HEAD, POST"
        answer = api.client.post("/v1/jobs/x", json={})
        assert answer.headers["allow"] == "DELETE, GET, HEAD"

    def test_an_unknown_query_parameter(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str, tuple[str, ...], str]] = [
            (
                "/v1/jobs?limit=2",
                "limit",
                ("page_size",),
                " Did you mean page_size? Allowed are cursor, id_prefix, name, ",
            ),
            ("/v1/jobs?page_size=2&OFFSET=5", "OFFSET", ("cursor",), "Did you mean cursor?"),
            ("/v1/jobs?state=FAILED", "state", ("status",), "Did you mean status?"),
            ("/v1/jobs?pagesize=2", "pagesize", ("page_size",), "Did you mean page_size?"),
            ("/v1/jobs?nosuch=2", "nosuch", (), "'nosuch' here. Allowed are "),
            ("/v1/keys?limit=2", "limit", ("page_size",), "Did you mean page_size?"),
            ("/v1/jobs/x?wait=5", "wait", (), "Send the header 'Prefer: wait=45' instead. It has no query parameters."),
            ("/v1/jobs/x/result?format=csv", "format", (), "Send the header 'Accept: text/csv' instead."),
            ("/healthz?verbose=1", "verbose", (), "It has no query parameters."),
        ]
        for path, name, suggestions, said in cases:
            with subtests.test(path=path):
                (issue,) = refused(api.client.get(path), 422, "unknown_query_parameter")["errors"]
                assert issue["detail"].startswith(f"There is no query parameter '{name}' here.")
                assert said in issue["detail"]
                assert issue["pointer"] == f"/query/{name}"
                assert tuple(issue.get("suggestions", ())) == suggestions

    def test_an_unknown_query_parameter_of_other_methods(self, api: Api) -> None:
        refused(api.client.post("/v1/jobs?dry_run=true", json=SPEC), 422, "unknown_query_parameter")
        problem = refused(api.client.post("/v1/jobs?idempotency_key=a", json=SPEC), 422, "unknown_query_parameter")
        assert "Send the header 'Idempotency-Key: …' instead." in problem["detail"]
        assert api.client.get("/v1/jobs").json()["jobs"] == []
        assert api.client.head("/v1/jobs?limit=2").status_code == 422

    def test_a_body_that_is_not_a_job(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[bytes, int, str]] = [
            *((body, 400, "malformed_json") for body in (b"{", b'{"a": }', b"\xff\xfe", b"nonsense", b'"')),
            (b'{"a": ' + b"9" * 5000 + b"}", 400, "malformed_json"),
            (b"", 422, "invalid_request"),
            *((body, 422, "invalid_request") for body in (b"[]", b"null", b"1", b'"x"', b"{}", b'{"tables": NaN}')),
            (rb'{"\ud800": 1, "tables": {}}', 422, "invalid_request"),
        ]
        for body, status, code in cases:
            with subtests.test(body=body):
                answer = api.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
                refused(answer, status, code)

    @pytest.mark.both_databases
    def test_an_unexpected_error_shows_only_the_request_id(self, api: Api) -> None:
        with api.database.write() as session:
            session.execute(
                text(
                    "INSERT INTO jobs (id, tenant, kind, name, spec, status, version, submitted_at, updated_at,"
                    " rung_at, fence, max_attempts, timeout_ms) VALUES"
                    " ('00000000-0000-0000-0000-00000000000a', 'default', 'run', 'secret', '{}', 'QUEUED',"
                    f" 1, {NO_TIME}, 0, 0, 0, 1, 1)"
                )
            )
        answer = api.client.get("/v1/jobs/00000000-0000-0000-0000-00000000000a", headers={"X-Request-Id": "look-me-up"})
        problem = refused(answer, 500, "internal_error")
        assert problem["request_id"] == "look-me-up"
        assert str(NO_TIME) not in answer.text
        assert "Traceback" not in answer.text

    @pytest.mark.both_databases
    def test_a_missing_table_is_503(self, api: Api) -> None:
        with api.database.write() as session:
            session.execute(text("DROP TABLE idempotency_keys"))
        answer = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "x"})
        refused(answer, 503, "database_unavailable")
        assert answer.headers["retry-after"] == "1"

    def test_a_lost_connection_is_503(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
    ) -> None:
        cases: list[type[DBAPIError]] = [OperationalError, InterfaceError]
        for error in cases:
            with subtests.test(error=error):
                problem = refused(self.answer_to(api, monkeypatch, error), 503, "database_unavailable")
                assert "Nothing was changed" in problem["detail"]

    def test_an_unknown_commit_is_reported_as_such(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = refused(self.answer_to(api, monkeypatch, CommitUnknownError), 503, "database_unavailable")
        assert "not known" in problem["detail"]

    def test_an_invalid_statement_of_the_service_is_500(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        refused(self.answer_to(api, monkeypatch, ProgrammingError), 500, "internal_error")

    def answer_to(self, api: Api, monkeypatch: pytest.MonkeyPatch, error: type[DBAPIError]) -> httpx.Response:
        def fail(_session: Session) -> int:
            raise error("SELECT 1", {}, Exception("connection already closed"))

        monkeypatch.setattr(api.database, "_clock", fail)
        answer: httpx.Response = api.client.get("/v1/jobs")
        return answer


class TestRequestId:
    def test_a_valid_id_is_kept(self, api: Api) -> None:
        answer = api.client.get("/healthz", headers={"X-Request-Id": "trace-1.a_B"})
        assert answer.headers["x-request-id"] == "trace-1.a_B"

    def test_an_invalid_id_is_replaced(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[str] = ["", "a b", "x" * 65, "a\tb", "ü"]
        for given in cases:
            with subtests.test(given=given):
                answer = api.client.get("/healthz", headers={"X-Request-Id": given.encode()})
                assert len(answer.headers["x-request-id"]) == 32

    def test_a_job_has_the_id_of_its_submission(self, api: Api) -> None:
        answer = api.client.post("/v1/jobs", json=SPEC, headers={"X-Request-Id": "mine"})
        assert answer.json()["request_id"] == "mine"
