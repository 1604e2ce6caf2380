"""Streaming jobs over HTTP: stop, resume, change settings, progress. The tests write what a worker would store."""

from __future__ import annotations

from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, update

from service.contract import problems
from service.jobs.check_job import CheckedJob, check_job
from service.store import leases, streaming_jobs
from service.store.attempts import Claim
from service.store.streaming_jobs import BatchFacts, BatchMeasures
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.api import Api, refused
from tests.support.lifecycle import STREAM_TABLES

LAYOUT = {"version": 1, "partitions": 8}
WAITING = {"files": 2, "rows": None, "bytes": 9}
STORED_BACKLOG = {
    "at": "2026-01-01T00:00:00Z",
    "tables": {"orders": {**WAITING, "oldest_seconds": 1.5}, "users": None},
}
"""As this version and earlier ones store it."""
BACKLOG = {**STORED_BACKLOG, "tables": {"orders": {**WAITING, "oldest_age_seconds": 1.5}, "users": None}}


def submitted(api: Api, mode: str = "continuous", **changes: object) -> str:
    answer = api.submit(mode=mode, **changes)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def running(api: Api, job_id: str, batches: int = 1) -> Claim:
    held = lifecycle.claim(api.database, job_id)
    with api.database.write() as session:
        now = api.database.now(session)
        generation = streaming_jobs.open_stream(session, held, now).generation
        assert streaming_jobs.save_layout(session, held, LAYOUT, now)
        assert leases.mark_running(session, held, now)
    for batch_id in range(batches):
        facts = BatchFacts(rows_in=10, rows_out=4, elapsed_ms=7, sink_version=batch_id, metrics={"files": 1})
        with api.database.write() as session:
            now = api.database.now(session)
            assert streaming_jobs.begin_batch(session, held, generation, batch_id, now)
            assert streaming_jobs.finish_batch(session, held, generation, batch_id, facts, now)
    return held


def record_stop(api: Api, held: Claim, because: str = "stopped", **more: Any) -> None:
    with api.database.write() as session:
        assert streaming_jobs.mark_stopped(session, held, api.database.now(session), reason=because, **more)


def stopped(api: Api, **changes: Any) -> str:
    job_id = submitted(api, **changes)
    record_stop(api, running(api, job_id))
    return job_id


def post(api: Api, job_id: str, verb: str, body: Any = None) -> httpx.Response:
    answer: httpx.Response = api.client.post(f"/v1/jobs/{job_id}/{verb}", json=body)
    return answer


def change(api: Api, job_id: str, patch: Any) -> httpx.Response:
    answer: httpx.Response = api.client.patch(f"/v1/jobs/{job_id}/settings", json=patch)
    return answer


def read(api: Api, job_id: str, part: str = "") -> dict[str, Any]:
    answer = api.client.get(f"/v1/jobs/{job_id}{part}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


class TestSubmitting:
    def test_a_continuous_job_has_a_queue_and_no_limit(self, api: Api) -> None:
        job = read(api, submitted(api, queue="long"))
        assert (job["mode"], job["queue"], job["stop_requested"], job["next_run_at"]) == (
            "continuous",
            "stream",
            False,
            None,
        )
        with api.database.read() as session:
            row = session.scalars(select(JobRow)).one()
        assert (row.mode, row.timeout_ms, row.spec_version) == ("continuous", 0, 4)

    def test_an_incremental_job_uses_the_queues_of_batch_jobs(self, api: Api) -> None:
        job = read(api, submitted(api, "incremental", schedule={"every": "10m"}))
        assert (job["queue"], job["spec"]["schedule"]) == ("short", {"every": "10min"})
        with api.database.read() as session:
            row = session.scalars(select(JobRow)).one()
        assert (row.mode, row.timeout_ms) == ("incremental", 3_600_000)

    def test_older_workers_can_run_a_batch_job(self, api: Api) -> None:
        api.submit()
        with api.database.read() as session:
            row = session.scalars(select(JobRow)).one()
        assert (row.mode, row.spec_version) == ("batch", 3)

    def test_inferred_columns_are_shown_and_kept(self, api: Api) -> None:
        directory = api.settings.data_roots[0] / "text"
        directory.mkdir()
        (directory / "1.json").write_text('{"uid": 1, "at": "2026-01-01T00:00:00Z"}')
        tables = {"orders": {"format": "json", "path": "text"}}
        job_id = submitted(api, tables=tables)
        assert read(api, job_id, "/stream")["schemas"] == {"orders": "uid BIGINT, at TIMESTAMP"}
        record_stop(api, running(api, job_id))
        (directory / "0.json").write_text('{"uid": "one"}')
        assert post(api, job_id, "resume", {"from": "scratch", "settings": {"mini_batch.size": 7}}).status_code == 202
        assert read(api, job_id, "/stream")["schemas"] == {"orders": "uid BIGINT, at TIMESTAMP"}
        assert read(api, job_id)["spec"]["tables"]["orders"]["schema"] == "uid BIGINT, at TIMESTAMP"

    def test_errors_point_to_the_field(self, api: Api) -> None:
        problem = refused(
            api.submit(mode="continuous", limits={"timeout": "1h"}), 422, "limits_timeout_not_for_streams"
        )
        assert problem["errors"][0]["pointer"] == "/limits/timeout"
        tables = {"orders": {"format": "stream", "stream": "orders"}}
        problem = refused(api.submit(mode="continuous", tables=tables), 422, "stream_unknown")
        assert problem["errors"][0]["pointer"] == "/tables/orders/stream"


@pytest.mark.both_databases
class TestStopping:
    def test_a_queued_job_stops_at_once(self, api: Api) -> None:
        answer = post(api, submitted(api), "stop")
        assert (answer.status_code, answer.json()["status"], answer.json()["finished"]) == (202, "STOPPED", False)
        assert answer.json()["stop_requested"] is True
        assert "retry-after" not in answer.headers

    def test_a_running_job_is_stopped_by_its_worker(self, api: Api) -> None:
        job_id = submitted(api)
        held = running(api, job_id)
        for _ in range(2):
            answer = post(api, job_id, "stop")
            assert (answer.status_code, answer.json()["status"]) == (202, "STOPPING")
            assert answer.headers["retry-after"] == "1"
        record_stop(api, held)
        assert post(api, job_id, "stop").json()["status"] == "STOPPED"

    def test_a_wait_ends_when_the_job_is_stopped(self, api: Api) -> None:
        job_id = stopped(api)
        answer = api.client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=60"})
        assert answer.json()["status"] == "STOPPED"
        assert [job["id"] for job in api.client.get("/v1/jobs?status=STOPPED").json()["jobs"]] == [job_id]

    def test_jobs_that_cannot_be_stopped(self, api: Api) -> None:
        batch = api.submit().json()["id"]
        refused(post(api, batch, "stop"), 409, "not_a_stream")
        job_id = submitted(api)
        assert post(api, job_id, "cancel").json()["status"] == "CANCELLED"
        refused(post(api, job_id, "stop"), 409, "job_already_finished")
        refused(post(api, "0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a", "stop"), 404, "job_not_found")

    def test_a_stopped_job_is_cancelled_and_deleted_at_once(self, api: Api) -> None:
        assert post(api, stopped(api), "cancel").json()["status"] == "CANCELLED"
        job_id = stopped(api)
        state = api.settings.streams_dir / job_id / "g1" / "checkpoint"
        state.mkdir(parents=True)
        assert api.client.delete(f"/v1/jobs/{job_id}").status_code == 204
        assert not (api.settings.streams_dir / job_id).exists()
        refused(api.client.get(f"/v1/jobs/{job_id}/stream"), 404, "job_not_found")
        job_id = submitted(api)
        running(api, job_id)
        post(api, job_id, "stop")
        refused(api.client.delete(f"/v1/jobs/{job_id}"), 409, "job_not_finished")


@pytest.mark.both_databases
class TestResuming:
    def test_from_the_checkpoint(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[Any] = [None, {}, {"from": "checkpoint"}]
        for body in cases:
            with subtests.test(body=body):
                job_id = stopped(api)
                before = len(api.messages)
                answer = post(api, job_id, "resume", body)
                assert (answer.status_code, answer.json()["status"], answer.json()["stop_requested"]) == (
                    202,
                    "QUEUED",
                    False,
                )
                assert len(api.messages) == before + 1
                stream = read(api, job_id, "/stream")
                assert (stream["generation"], stream["last_batch"], stream["layout"]) == (1, 0, LAYOUT)

    def test_from_scratch(self, api: Api) -> None:
        job_id = stopped(api)
        assert post(api, job_id, "resume", {"from": "scratch"}).status_code == 202
        stream = read(api, job_id, "/stream")
        assert (stream["generation"], stream["last_batch"], stream["layout"]) == (2, None, None)

    def test_a_failed_job_can_be_resumed(self, api: Api) -> None:
        job_id = submitted(api)
        record_stop(api, running(api, job_id), "failed", error=problems.storage_unavailable("It is away."))
        assert read(api, job_id)["error"]["code"] == "storage_unavailable"
        assert read(api, job_id, "/stream")["stopped_because"] == "failed"
        assert post(api, job_id, "resume").json()["error"] is None

    def test_only_a_stopped_job_can_be_resumed(self, api: Api) -> None:
        job_id = submitted(api)
        assert "stop it first" in refused(post(api, job_id, "resume"), 409, "not_stopped")["detail"]
        running(api, job_id)
        post(api, job_id, "stop")
        assert "wait" in refused(post(api, job_id, "resume"), 409, "not_stopped")["detail"]
        with api.database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(lease_expires_at=0))
        assert post(api, job_id, "resume").status_code == 202
        post(api, job_id, "cancel")
        assert "it has finished" in refused(post(api, job_id, "resume"), 409, "not_stopped")["detail"]
        refused(post(api, api.submit().json()["id"], "resume"), 409, "not_a_stream")

    @pytest.mark.parametrize("tenant_limits", [{"QUEUED_JOBS": "1"}])
    def test_a_job_beyond_the_limit_of_its_tenant_stays_stopped(self, api: Api) -> None:
        job_id = stopped(api)
        waiting = submitted(api)
        answer = post(api, job_id, "resume", {"settings": {"mini_batch.size": 7}})
        assert "EVENKEEL_LIMITS_QUEUED_JOBS" in refused(answer, 429, "too_many_jobs")["detail"]
        assert int(answer.headers["retry-after"]) > 0
        assert read(api, job_id)["status"] == "STOPPED"
        assert read(api, job_id)["spec"]["settings"]["mini_batch"]["size"] != 7
        running(api, waiting)
        assert post(api, job_id, "resume").status_code == 202

    def test_an_invalid_body_is_refused(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[Any] = [{"from": "yesterday"}, {"form": "scratch"}, {"settings": {"nosuch": 1}}, []]
        for body in cases:
            with subtests.test(body=body):
                assert post(api, stopped(api), "resume", body).status_code == 422

    def test_with_settings(self, api: Api) -> None:
        job_id = stopped(api)
        body = {"settings": {"state.partitions": 4}}
        refused(post(api, job_id, "resume", body), 409, "state_not_compatible")
        answer = post(api, job_id, "resume", {**body, "from": "scratch"})
        assert (answer.status_code, answer.json()["spec"]["settings"]["state"]["partitions"]) == (202, 4)


class TestChangingSettings:
    def test_settings_can_be_changed_in_any_spelling(self, api: Api) -> None:
        job_id = stopped(api, settings={"mini_batch": {"size": 7}, "agg_phase": "ONE_PHASE"})
        patch = {"table.exec.mini-batch.allow-latency": "2s", "mini_batch": {"size": 9}, "agg_phase": None}
        answer = change(api, job_id, patch)
        settings = answer.json()["spec"]["settings"]
        assert answer.status_code == 200
        assert settings["mini_batch"] == {"enabled": "auto", "allow_latency": "2s", "size": 9}
        assert settings["agg_phase"] == "AUTO"
        assert read(api, job_id)["spec"]["settings"] == settings
        assert change(api, job_id, {"mini_batch": None}).json()["spec"]["settings"]["mini_batch"]["size"] is None

    def test_the_media_type_of_merge_patches_is_accepted(self, api: Api) -> None:
        answer = api.client.patch(
            f"/v1/jobs/{stopped(api)}/settings",
            content=b'{"mini_batch.allow_latency": "9s"}',
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert answer.json()["spec"]["settings"]["mini_batch"]["allow_latency"] == "9s"

    def test_a_patch_without_effect_changes_nothing(self, api: Api) -> None:
        job_id = stopped(api)
        version = read(api, job_id)["version"]
        assert change(api, job_id, {"mini_batch": {"allow_latency": "5000ms"}}).json()["version"] == version

    def test_settings_of_the_state_cannot_change_while_there_is_state(self, api: Api) -> None:
        job_id = stopped(api)
        patch = {"state": {"provider": "memory"}, "distinct_split.bucket_num": 64, "mini_batch.size": 9}
        problem = refused(change(api, job_id, patch), 409, "state_not_compatible")
        assert [issue["pointer"] for issue in problem["errors"]] == ["/distinct_split/bucket_num", "/state/provider"]
        assert "scratch" in problem["detail"]
        assert read(api, job_id)["spec"]["settings"]["mini_batch"]["size"] is None
        # The same values again are no difference.
        assert change(api, job_id, {"state": {"provider": "rocksdb"}}).status_code == 200

    def test_a_stream_gets_no_driver_of_its_own(self, api: Api) -> None:
        job_id = stopped(api)
        problem = refused(change(api, job_id, {"isolation": "driver"}), 422, "isolation_not_for_streams")
        assert [issue["pointer"] for issue in problem["errors"]] == ["/isolation"]
        body = {"settings": {"isolation": "driver"}}
        refused(post(api, job_id, "resume", body), 422, "isolation_not_for_streams")
        assert change(api, job_id, {"isolation": "shared"}).status_code == 200

    def test_a_job_with_fields_of_a_newer_version(self, api: Api) -> None:
        job_id = stopped(api)
        with api.database.write() as session:
            row = session.scalars(select(JobRow)).one()
            row.spec = {**row.spec, "of_a_newer_version": True}
        refused(change(api, job_id, {"mini_batch.size": 9}), 409, "job_state_unknown")
        refused(post(api, job_id, "resume", {"settings": {"mini_batch.size": 9}}), 409, "job_state_unknown")

    def test_without_state_every_setting_can_change(self, api: Api) -> None:
        job_id = submitted(api)
        post(api, job_id, "stop")
        answer = change(api, job_id, {"state": {"provider": "memory", "partitions": 4}})
        assert answer.json()["spec"]["settings"]["state"] == {"provider": "memory", "partitions": 4, "limit": None}

    @pytest.mark.parametrize("file_format", ["csv", "parquet"])
    def test_a_lookup_table_without_files_blocks_only_changes_that_need_it(self, api: Api, file_format: str) -> None:
        (users := api.settings.data_roots[0] / "users").mkdir()
        path = users / f"0.{file_format}"
        pq.write_table(pa.table({"uid": [1]}), path) if file_format == "parquet" else path.write_text("1\n")
        declared = {} if file_format == "parquet" else {"schema": "uid BIGINT", "options": {"header": False}}
        table = {"format": file_format, "path": "users", "role": "static", "refresh": True, **declared}
        more: dict[str, Any] = {
            "tables": {"orders": {**STREAM_TABLES["orders"], "role": "stream"}, "users": table},
            "sql": "SELECT o.uid, COUNT(*) AS n FROM orders o JOIN users u ON o.uid = u.uid GROUP BY o.uid",
        }
        unstarted = submitted(api, **more)
        post(api, unstarted, "stop")
        job_id = stopped(api, **more)
        path.unlink()
        refused(change(api, unstarted, {"mini_batch.size": 9}), 422, "empty_directory")
        answer = change(api, job_id, {"mini_batch.size": 9})
        if file_format == "csv":
            assert answer.json()["spec"]["settings"]["mini_batch"]["size"] == 9
            # From scratch there is no version of it.
            again = {"from": "scratch", "settings": {"mini_batch.size": 8}}
            refused(post(api, job_id, "resume", again), 422, "empty_directory")
            return
        problem = refused(answer, 422, "empty_directory")
        assert problem["detail"].startswith(
            "The directory 'users' contains no data file. The job continues with its copy"
        )
        assert problem["errors"][0]["pointer"] == "/tables/users/path"
        pq.write_table(pa.table({"uid": [1]}), path)
        assert change(api, job_id, {"mini_batch.size": 9}).status_code == 200

    def test_only_a_stopped_job_can_be_changed(self, api: Api) -> None:
        job_id = submitted(api)
        refused(change(api, job_id, {"mini_batch.size": 9}), 409, "not_stopped")
        refused(change(api, api.submit().json()["id"], {"mini_batch.size": 9}), 409, "not_a_stream")

    @pytest.mark.parametrize("verb", ["resume", "settings"])
    @pytest.mark.both_databases
    def test_concurrent_changes_of_settings_are_checked_together(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        """Each goes with the settings that were there, and not with the other."""
        job_id = submitted(api, sql="SELECT COUNT(DISTINCT o.uid) AS n FROM orders o")
        post(api, job_id, "stop")
        one, other = {"distinct_split.enabled": "true"}, {"distinct_method": "native"}
        answers: list[httpx.Response] = []

        def checked(*given: Any, **more: Any) -> CheckedJob:
            found = check_job(*given, **more)
            if not answers:
                monkeypatch.setattr("service.jobs.lifecycle.check_job", check_job)
                answers.append(change(api, job_id, one))
            return found

        monkeypatch.setattr("service.jobs.lifecycle.check_job", checked)
        late = change(api, job_id, other) if verb == "settings" else post(api, job_id, verb, {"settings": other})
        refused(late, 422, "contradicting_settings")
        assert answers[0].status_code == 200
        settings = read(api, job_id)["spec"]["settings"]
        assert (settings["distinct_split"]["enabled"], settings["distinct_method"]) == ("true", "auto")
        assert read(api, job_id)["status"] == "STOPPED"

    def test_an_invalid_patch_is_reported_with_its_place(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[Any, str]] = [
            ({"nosuch": 1}, "/nosuch"),
            ({"mini_batch": {"size": 0}}, "/mini_batch/size"),
            ({"mini_batch": {"nosuch": None}}, "/mini_batch.nosuch"),
            ([], ""),
        ]
        for patch, pointer in cases:
            with subtests.test(patch=patch, pointer=pointer):
                answer = change(api, stopped(api), patch)
                assert answer.status_code == 422
                assert answer.json()["errors"][0]["pointer"] == pointer

    def test_settings_that_the_query_does_not_support_are_refused(self, api: Api) -> None:
        job_id = submitted(api)
        post(api, job_id, "stop")
        answer = change(api, job_id, {"distinct_method": "bitmap"})
        told = api.submit(mode="continuous", settings={"distinct_method": "bitmap"})
        assert (answer.status_code, answer.json()["code"]) == (told.status_code, told.json().get("code"))

    def test_a_query_that_was_accepted_before_a_limit_existed_stays_accepted(
        self, api: Api, subtests: pytest.Subtests
    ) -> None:
        for verb in ("resume", "settings"):
            with subtests.test(verb=verb):
                job_id = submitted(api)
                post(api, job_id, "stop")
                with api.database.write() as session:
                    stored = session.scalars(select(JobRow.spec).where(JobRow.id == job_id)).one()
                    conditions = " AND ".join(f"uid <> {number}" for number in range(1_200))
                    query = {"sql": f"SELECT uid, COUNT(*) AS n FROM orders WHERE {conditions} GROUP BY uid"}
                    session.execute(update(JobRow).where(JobRow.id == job_id).values(spec={**stored, **query}))
                refused(api.submit(mode="continuous", **query), 422, "query_too_deep")
                patch = {"mini_batch.size": 9}
                answer = (
                    change(api, job_id, patch) if verb == "settings" else post(api, job_id, verb, {"settings": patch})
                )
                assert answer.status_code == (200 if verb == "settings" else 202), answer.text
                assert answer.json()["spec"]["settings"]["mini_batch"]["size"] == 9


class TestReading:
    def test_progress_before_the_first_mini_batch(self, api: Api) -> None:
        stream = read(api, submitted(api), "/stream")
        assert (stream["generation"], stream["rows_in"], stream["layout"], stream["updated_at"]) == (1, 0, None, None)

    def test_progress(self, api: Api) -> None:
        job_id = submitted(api, "incremental", schedule={"every": "10min"})
        held = running(api, job_id, batches=3)
        with api.database.write() as session:
            now = api.database.now(session)
            # The mini-batch was measured before: what is told of it now is the stream's alone.
            assert streaming_jobs.measure_batches(session, held, 1, [BatchMeasures(2, 10, {"behind_ms": 5})], now)
            assert streaming_jobs.save_stream_metric(session, held, 1, streaming_jobs.BACKLOG, STORED_BACKLOG, now)
        record_stop(api, held, "caught_up", next_run_at=now + 600_000)
        stream = read(api, job_id, "/stream")
        assert (stream["last_batch"], stream["rows_in"], stream["rows_out"], stream["sink_version"]) == (2, 30, 12, 2)
        assert (stream["metrics"]["behind_ms"], stream["layout"], stream["mode"]) == (5, LAYOUT, "incremental")
        assert (stream["backlog"], stream["stopped_because"]) == (BACKLOG, "caught_up")
        assert stream["next_run_at"] == read(api, job_id)["next_run_at"] is not None
        assert post(api, job_id, "stop").json()["next_run_at"] is None

    def test_versions_of_lookup_tables(self, api: Api) -> None:
        job_id = submitted(api)
        held = running(api, job_id)
        used = {"table": "u", "version": 3, "since_batch": 7, "files": 1, "bytes": 9}
        at, error = "2026-01-31T12:00:00Z", {"code": "schema_changed", "detail": "It has another column."}
        # As this version and earlier ones store it.
        stored = [{**used, "taken_at": at, "not_taken": error}]
        with api.database.write() as session:
            assert streaming_jobs.save_stream_metric(
                session, held, 1, streaming_jobs.FOLLOWED, stored, api.database.now(session)
            )
        stream = read(api, job_id, "/stream")
        assert stream["refreshed_tables"] == [{**used, "loaded_at": at, "refresh_error": error}]
        assert stream["metrics"] is None

    def test_a_streaming_job_has_no_batch_metrics(self, api: Api) -> None:
        answer = api.client.get(f"/v1/jobs/{stopped(api)}/metrics")
        refused(answer, 404, "metrics_not_ready")
        assert "/batches" in answer.json()["detail"]

    @pytest.mark.both_databases
    def test_batches_page_by_page(self, api: Api) -> None:
        job_id = submitted(api)
        held = running(api, job_id, batches=5)
        with api.database.write() as session:
            assert streaming_jobs.begin_batch(session, held, 1, 5, api.database.now(session))
        first = read(api, job_id, "/batches?page_size=4")
        assert [batch["batch_id"] for batch in first["batches"]] == [5, 4, 3, 2]
        assert (first["batches"][0]["committed_at"], first["batches"][0]["rows_in"]) == (None, None)
        assert first["batches"][1]["metrics"]["files"] == 1
        last = read(api, job_id, f"/batches?page_size=4&cursor={first['next_cursor']}")
        assert ([batch["batch_id"] for batch in last["batches"]], last["next_cursor"]) == ([1, 0], "")
        other = submitted(api)
        refused(api.client.get(f"/v1/jobs/{other}/batches?cursor={first['next_cursor']}"), 400, "invalid_cursor")

    def test_unmeasured_batches_are_reported(self, api: Api) -> None:
        job_id = submitted(api)
        held = running(api, job_id, batches=2)
        with api.database.write() as session:
            facts = BatchFacts(rows_in=0, rows_out=4, elapsed_ms=7, sink_version=2, metrics={})
            assert streaming_jobs.finish_batch(session, held, 1, 2, facts, api.database.now(session))
        newest = read(api, job_id, "/batches")["batches"][0]
        assert (newest["rows_in"], newest["rows_out"], newest["metrics"]) == (None, 4, None)
        told = read(api, job_id, "/stream")
        assert (told["rows_in"], told["unmeasured_batches"], told["last_batch"]) == (20, 1, 2)

    def test_a_batch_job_has_no_mini_batches(self, api: Api) -> None:
        job_id = api.submit().json()["id"]
        for part in ("stream", "batches"):
            refused(api.client.get(f"/v1/jobs/{job_id}/{part}"), 409, "not_a_stream")
