"""Every error is a problem with a stable code; what a job's author did wrong is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from service.store.faults import CommitUnknownError
from tests.support.api import Api, refused
from tests.support.lifecycle import SPEC

NO_TIME = 2**60
"""Milliseconds after the last year that a date can have: no version stores it."""


def table(path: str, format: str = "parquet", **more: object) -> dict[str, object]:  # noqa: A002
    return {"orders": {"format": format, "path": path, **more}}


class TestJobs:
    """What is wrong with the job itself."""

    def test_unknown_table(self, api: Api) -> None:
        problem = refused(api.submit(sql="SELECT COUNT(*) AS n FROM order"), 422, "unknown_table")
        assert problem["errors"][0]["suggestions"] == ["orders"]

    def test_unknown_column(self, api: Api) -> None:
        problem = refused(api.submit(sql="SELECT amuont FROM orders"), 422, "unknown_column")
        issue = problem["errors"][0]
        assert issue["suggestions"] == ["amount"]
        assert issue["line"] == 1

    def test_type_mismatch(self, api: Api) -> None:
        refused(api.submit(sql="SELECT SUM(uid = 1) AS s FROM orders"), 422, "type_mismatch")

    def test_unsupported_construct(self, api: Api) -> None:
        refused(api.submit(sql="SELECT uid, RANK() OVER (ORDER BY uid) AS r FROM orders"), 422, "unsupported_construct")

    def test_sql_syntax(self, api: Api) -> None:
        problem = refused(api.submit(sql="SELECT uid\nFROM orders WHERE )"), 422, "sql_syntax")
        assert problem["errors"][0]["line"] == 2
        assert problem["errors"][0]["column"] >= 1

    def test_path_outside_the_data_roots(self, api: Api, subtests: pytest.Subtests) -> None:
        for path in ("../secret.parquet", "/etc/passwd", "sub/../../x.parquet"):
            with subtests.test(path=path):
                refused(api.submit(tables=table(path)), 422, "path_outside_data_roots")

    def test_missing_path(self, api: Api) -> None:
        refused(api.submit(tables=table("nowhere.parquet")), 422, "path_not_found")

    def test_empty_directory(self, api: Api) -> None:
        (api.settings.data_roots[0] / "empty").mkdir()
        refused(api.submit(tables=table("empty")), 422, "empty_directory")

    def test_corrupt_file(self, api: Api) -> None:
        (api.settings.data_roots[0] / "bad.parquet").write_bytes(b"PAR1 and nothing else")
        refused(api.submit(tables=table("bad.parquet")), 422, "corrupt_file")

    def test_schema_mismatch(self, api: Api) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = api.settings.data_roots[0] / "mixed"
        folder.mkdir()
        pq.write_table(pa.table({"uid": [1]}), folder / "a.parquet")
        pq.write_table(pa.table({"uid": ["one"]}), folder / "b.parquet")
        refused(api.submit(tables=table("mixed")), 422, "schema_mismatch")

    def test_unreadable_file(self, api: Api) -> None:
        (api.settings.data_roots[0] / "locked.parquet").symlink_to(Path("/nonexistent/target.parquet"))
        answer = api.submit(tables=table("locked.parquet"))
        assert answer.status_code == 422
        assert answer.json()["code"] in {"unreadable_file", "path_not_found", "path_outside_data_roots"}

    def test_invalid_schema(self, api: Api) -> None:
        (api.settings.data_roots[0] / "a.csv").write_text("1\n")
        refused(api.submit(tables=table("a.csv", "csv", schema="uid WHATEVER")), 422, "invalid_schema")

    def test_a_schema_is_required_for_text(self, api: Api) -> None:
        refused(api.submit(tables=table("a.csv", "csv")), 422, "schema_required")

    def test_a_schema_is_refused_for_parquet(self, api: Api) -> None:
        refused(api.submit(tables=table("orders.parquet", schema="uid BIGINT")), 422, "schema_not_applicable")

    def test_a_setting_out_of_range(self, api: Api) -> None:
        answer = api.submit(settings={"distinct_split.bucket_num": 65537})
        problem = refused(answer, 422, "invalid_request")
        issue = problem["errors"][0]
        assert issue["pointer"] == "/settings/distinct_split/bucket_num"
        assert issue["code"] == "less_than_equal"

    def test_an_unknown_setting(self, api: Api) -> None:
        problem = refused(api.submit(settings={"agg_phse": "AUTO"}), 422, "unknown_setting")
        issue = problem["errors"][0]
        assert issue["pointer"] == "/settings/agg_phse"
        assert "agg_phase" in issue["suggestions"]

    def test_two_settings_that_contradict(self, api: Api) -> None:
        settings = {"agg_phase": "ONE_PHASE", "table.optimizer.agg-phase-strategy": "TWO_PHASE"}
        refused(api.submit(settings=settings), 422, "contradicting_settings")

    def test_neither_sql_nor_query(self, api: Api) -> None:
        body = {key: value for key, value in SPEC.items() if key != "sql"}
        refused(api.client.post("/v1/jobs", json=body), 422, "sql_or_query")

    def test_every_wrong_place_is_told_and_no_value_echoed(self, api: Api) -> None:
        answer = api.submit(limits={"timeout": "hunter2", "max_attempts": "hunter2"}, mode="hunter2")
        problem = refused(answer, 422, "invalid_request")
        pointers = {issue["pointer"] for issue in problem["errors"]}
        assert pointers == {"/limits/timeout", "/limits/max_attempts", "/mode"}
        assert "hunter2" not in answer.text

    def test_an_unknown_field(self, api: Api) -> None:
        problem = refused(api.submit(**{"setings/~": {}}), 422, "invalid_request")
        assert problem["errors"][0]["pointer"] == "/setings~1~0"
        assert problem["errors"][0]["detail"] == "There is no field 'setings/~' here. Did you mean settings?"
        assert problem["errors"][0]["suggestions"] == ["settings"]

    def test_the_nearest_field_is_told(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"tables": table("a.csv", "csv", schema="a INT", rolle="stream")}, "role"),
            ({"tables": table("a.csv", "csv", schema="a INT", options={"delimeter": ";"})}, "delimiter"),
            ({"tables": table("orders.parquet", shema="a INT")}, "schema"),
            ({"limits": {"max_atempts": 2}}, "max_attempts"),
            ({"sql": None, "query": {"source": {"kind": "table", "table": "orders"}, "wher": "a"}}, "where"),
        ]
        for changes, meant in cases:
            with subtests.test(changes=changes, meant=meant):
                problem = refused(api.submit(**changes), 422, "invalid_request")
                (issue,) = [issue for issue in problem["errors"] if issue["code"] == "extra_forbidden"]
                assert issue["suggestions"][0] == meant
                assert f"Did you mean {meant}" in issue["detail"]

    def test_the_nearest_field_of_another_body_is_told(self, api: Api) -> None:
        problem = refused(api.client.post("/v1/jobs/x/resume", json={"form": "scratch"}), 422, "invalid_request")
        assert problem["errors"][0]["suggestions"] == ["from"]

    def test_words_that_only_programmers_know_are_left_out(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[object, str]] = [
            ("1h", "Input should be an object"),
            ({"timeout": 5}, "A duration is a whole number and a unit, for example"),
        ]
        for limits, told in cases:
            with subtests.test(limits=limits, told=told):
                problem = refused(api.submit(limits=limits), 422, "invalid_request")
                assert problem["errors"][0]["detail"].startswith(told)

    def test_a_list_with_a_wrong_item_is_not_told_to_be_too_short(self, api: Api) -> None:
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

    def test_an_option_of_text_files_in_the_wrong_place(self, api: Api) -> None:
        problem = refused(api.submit(tables=table("a.csv", "csv", schema="a INT", header=True)), 422, "invalid_request")
        assert problem["errors"][0]["detail"] == 'There is no field \'header\' here. Write "options": {"header": …}.'

    def test_such_a_word_elsewhere_is_no_option(self, api: Api) -> None:
        problem = refused(api.submit(limits={"header": True}), 422, "invalid_request")
        assert problem["errors"][0]["detail"] == "There is no field 'header' here."

    def test_characters_that_nothing_can_store(self, api: Api, subtests: pytest.Subtests) -> None:
        for sql in ("SELECT '\0' AS x FROM orders", "\ud800"):
            with subtests.test(sql=sql):
                assert api.client.post(
                    "/v1/jobs",
                    content=json.dumps({**SPEC, "sql": sql}).encode(),
                    headers={"Content-Type": "application/json"},
                ).json()["code"] in {"invalid_request", "sql_syntax"}

    def test_half_a_surrogate_pair_in_a_name_of_a_field(self, api: Api) -> None:
        answer = api.client.post(
            "/v1/jobs", content=rb'{"\ud800": 1, "tables": {}}', headers={"Content-Type": "application/json"}
        )
        refused(answer, 422, "invalid_request")

    def test_explain_refuses_the_same(self, api: Api) -> None:
        refused(api.client.post("/v1/explain", json={**SPEC, "sql": "SELECT nope FROM orders"}), 422, "unknown_column")


class TestRequests:
    """What is wrong with the request."""

    def test_an_unknown_path(self, api: Api, subtests: pytest.Subtests) -> None:
        for path in ("/v1", "/v1/jobs/", "/v2/jobs", "/v1/jobs/x/y/z", "/%00"):
            with subtests.test(path=path):
                refused(api.client.get(path), 404, "not_found")

    def test_a_method_that_the_path_has_not(self, api: Api) -> None:
        answer = api.client.put("/v1/jobs", json={})
        refused(answer, 405, "method_not_allowed")
        assert answer.json()["detail"].endswith(f"but {answer.headers['Allow']}.")
        assert answer.headers["allow"] == "GET, HEAD, POST"
        answer = api.client.post("/v1/jobs/x", json={})
        assert answer.headers["allow"] == "DELETE, GET, HEAD"

    def test_a_body_that_is_not_json(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[bytes] = [b"{", b"", b'{"a": }', b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}", b"nonsense", b'"']
        for body in cases:
            with subtests.test(body=body):
                answer = api.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
                assert answer.status_code in {400, 422}
                assert answer.json()["code"] in {"malformed_json", "invalid_request"}
                if len(body) in range(1, 10) and body != b'"':
                    refused(answer, 400, "malformed_json")

    def test_json_that_is_no_job(self, api: Api, subtests: pytest.Subtests) -> None:
        for body in (b"[]", b"null", b"1", b'"x"', b"{}", b'{"tables": NaN}'):
            with subtests.test(body=body):
                answer = api.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
                refused(answer, 422, "invalid_request")

    def test_an_unexpected_failure_tells_nothing_but_its_id(self, api: Api) -> None:
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

    def test_a_table_that_is_gone_is_503(self, api: Api) -> None:
        with api.database.write() as session:
            session.execute(text("DROP TABLE idempotency_keys"))
        answer = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "x"})
        refused(answer, 503, "database_unavailable")
        assert answer.headers["retry-after"] == "1"

    def test_a_connection_that_broke_is_503(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
    ) -> None:
        cases: list[type[DBAPIError]] = [OperationalError, InterfaceError]
        for error in cases:
            with subtests.test(error=error):
                problem = refused(self.answer_to(api, monkeypatch, error), 503, "database_unavailable")
                assert "Nothing was changed" in problem["detail"]

    def test_a_commit_without_an_answer_is_told_as_such(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = refused(self.answer_to(api, monkeypatch, CommitUnknownError), 503, "database_unavailable")
        assert "not known" in problem["detail"]

    def test_a_wrong_statement_of_ours_is_500(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        refused(self.answer_to(api, monkeypatch, ProgrammingError), 500, "internal_error")

    def answer_to(self, api: Api, monkeypatch: pytest.MonkeyPatch, error: type[DBAPIError]) -> httpx.Response:
        def fail(_session: Session) -> int:
            raise error("SELECT 1", {}, Exception("connection already closed"))

        monkeypatch.setattr(api.database, "_clock", fail)
        answer: httpx.Response = api.client.get("/v1/jobs")
        return answer


class TestRequestId:
    def test_a_sane_one_is_kept(self, api: Api) -> None:
        answer = api.client.get("/healthz", headers={"X-Request-Id": "trace-1.a_B"})
        assert answer.headers["x-request-id"] == "trace-1.a_B"

    def test_any_other_is_replaced(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[str] = ["", "a b", "x" * 65, "a\tb", "ü"]
        for given in cases:
            with subtests.test(given=given):
                answer = api.client.get("/healthz", headers={"X-Request-Id": given.encode()})
                assert len(answer.headers["x-request-id"]) == 32

    def test_a_job_keeps_the_one_of_its_submission(self, api: Api) -> None:
        answer = api.client.post("/v1/jobs", json=SPEC, headers={"X-Request-Id": "mine"})
        assert answer.json()["request_id"] == "mine"
