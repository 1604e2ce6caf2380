"""Submitting, reading, cancelling and deleting jobs over HTTP."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow as pa
import pytest
from sqlalchemy import select, update

from service.contract import problems
from service.contract.enums import JobStatus
from service.store import leases, publication
from service.store.attempts import attempts_of
from service.store.publication import publish_or_retry
from service.store.tables import IdempotencyKeyRow, JobEventRow, JobRow
from tests.support import lifecycle
from tests.support.api import Api, refused
from tests.support.lifecycle import SPEC

RESULT = pa.table({"uid": pa.array([1, 2], pa.int64())})


def code(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["code"])


@pytest.mark.both_databases
class TestSubmit:
    def test_stores_and_announces_the_job(self, api: Api) -> None:
        answer = api.submit(settings={"table.optimizer.agg-phase-strategy": "NONE"})
        assert answer.status_code == 202
        job = answer.json()
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
        assert answer.headers["retry-after"] == "1"
        assert job["status"] == "QUEUED"
        assert job["finished"] is False
        assert job["spec"]["settings"]["agg_phase"] == "AUTO"
        assert job["spec"]["tables"]["orders"]["schema"] is None
        read = api.client.get(answer.headers["location"])
        assert read.json() == job
        assert read.headers["etag"] == answer.headers["etag"]
        assert len(api.messages) == 1
        with api.database.read() as session:
            assert [row.data for row in session.scalars(select(JobEventRow))] == [{"status": "QUEUED"}]

    def test_the_message_stays_in_the_outbox_while_the_broker_is_unavailable(self, api: Api) -> None:
        folder = api.settings.broker_dir / "messages"
        folder.rmdir()
        answer = api.submit()
        assert answer.status_code == 202
        api.wait_for_announcements()
        assert api.owed == [answer.json()["id"]]

    def test_an_idempotency_key_holds_for_a_day(self, api: Api) -> None:
        headers = {"Idempotency-Key": "monday"}
        first = api.client.post("/v1/jobs", json=SPEC, headers=headers)
        # Other spelling, same job.
        second = api.client.post("/v1/jobs", json={**SPEC, "settings": {}}, headers={"Idempotency-Key": '"monday"'})
        assert (first.status_code, second.status_code) == (202, 202)
        assert first.json() == second.json()
        assert second.headers["idempotency-replayed"] == "true"
        assert len(api.messages) == 1
        other = {**SPEC, "name": "other"}
        refused(api.client.post("/v1/jobs", json=other, headers=headers), 422, "idempotency_key_reused")
        with api.database.write() as session:
            session.execute(update(IdempotencyKeyRow).values(expires_at=1))
        later = api.client.post("/v1/jobs", json=other, headers=headers)
        assert later.status_code == 202
        assert later.json()["id"] != first.json()["id"]

    def test_concurrent_requests_with_one_key_create_one_job(self, api: Api) -> None:
        def post(_: int) -> httpx.Response:
            answer: httpx.Response = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "rush"})
            return answer

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(post, range(16)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1

    def test_concurrent_submissions_all_succeed(self, api: Api) -> None:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda index: api.submit(name=f"job-{index}"), range(48)))
        assert {answer.status_code for answer in answers} == {202}


class TestIdempotencyKey:
    def test_a_quoted_key_equals_the_bare_key(self, api: Api, subtests: pytest.Subtests) -> None:
        pairs = (
            ('"two words"', '"two words"', True),
            (r'"a\"b\\"', 'a"b\\', True),
            ('a"', '"a\\""', True),
            ("x" * 253, '"%s"' % ("x" * 253), True),
            # Quotes at the ends of a bare key belong to it.
            ("b", 'b"', False),
        )
        for one, other, is_one in pairs:
            with subtests.test(one=one, other=other):
                answers = [api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": k}) for k in (one, other)]
                assert [answer.status_code for answer in answers] == [202, 202]
                assert (answers[0].json() == answers[1].json()) is is_one

    def test_an_invalid_key_is_refused(self, api: Api, subtests: pytest.Subtests) -> None:
        for key in ("with space", "ü", "x" * 256, "", '""', '"', '"a', '"a"b', r'"a\b"'):
            with subtests.test(key=key):
                answer = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": key.encode()})
                refused(answer, 422, "invalid_request")


class TestGet:
    def test_an_unknown_id(self, api: Api, subtests: pytest.Subtests) -> None:
        method_cases: list[tuple[str, str]] = [
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/plan"),
            ("GET", "/metrics"),
            ("GET", "/result"),
            ("GET", "/events"),
        ]
        for method, path in method_cases:
            job_id_cases: list[str] = ["nope", "00000000-0000-0000-0000-000000000000", "a%00b", "x" * 65, "x" * 5000]
            for job_id in job_id_cases:
                with subtests.test(method=method, path=path, job_id=job_id):
                    answer = api.client.request(method, f"/v1/jobs/{job_id}{path}")
                    refused(answer, 404, "job_not_found")

    def test_an_unchanged_job_is_304(self, api: Api) -> None:
        answer = api.submit()
        path, tag = answer.headers["location"], answer.headers["etag"]
        assert tag.startswith('"1-')
        for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
            again = api.client.get(path, headers={"If-None-Match": known})
            assert again.status_code == 304, known
            assert again.content == b""
            assert again.headers["etag"] == tag
        lifecycle.claim(api.database, answer.json()["id"])
        assert api.client.get(path, headers={"If-None-Match": tag}).json()["status"] == "PLANNING"

    @pytest.mark.both_databases
    def test_a_lease_that_expires_changes_the_tag(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.claim(api.database, job_id)
        tag = api.client.get(f"/v1/jobs/{job_id}").headers["etag"]
        with api.database.write() as session:
            session.execute(update(JobRow).values(lease_expires_at=1))
        answer = api.client.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": tag})
        assert answer.status_code == 200
        assert answer.json()["status"] == "QUEUED"

    def test_a_finished_job_has_no_retry_after(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT)
        answer = api.client.get(f"/v1/jobs/{job_id}")
        job = answer.json()
        assert "retry-after" not in answer.headers
        assert (job["status"], job["finished"], job["attempts"]) == ("SUCCEEDED", True, 1)
        assert job["result"]["rows"] == 2
        assert job["error"] is None
        assert job["finished_at"].endswith("Z")

    def test_a_failed_job_has_its_error(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
        job = api.client.get(f"/v1/jobs/{job_id}").json()
        assert job["status"] == "FAILED"
        assert job["error"]["code"] == "engine_error"

    def test_a_failed_job_names_the_request_that_submitted_it(self, api: Api) -> None:
        job_id = api.client.post("/v1/jobs", json=SPEC, headers={"X-Request-Id": "mine"}).json()["id"]
        lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
        assert api.client.get(f"/v1/jobs/{job_id}").json()["error"]["request_id"] == "mine"

    def test_progress_of_a_lost_attempt_is_not_shown(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.run(api.database, lifecycle.claim(api.database, job_id))
        assert api.client.get(f"/v1/jobs/{job_id}").json()["progress"]["tasks_done"] == 1
        with api.database.write() as session:
            session.execute(update(JobRow).values(lease_expires_at=1))
        job = api.client.get(f"/v1/jobs/{job_id}").json()
        assert (job["status"], job["progress"]) == ("QUEUED", None)

    def test_a_spec_stored_by_another_version_is_shown_as_it_is(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        stored = {**SPEC, "sink": {"kind": "postgres"}, "later": [1]}
        with api.database.write() as session:
            session.execute(update(JobRow).values(spec=stored))
        answer = api.client.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200
        assert answer.json()["spec"] == stored


class TestWait:
    def test_waits_until_the_job_has_finished(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(api.client.get, f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20"})
            lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT)
            answer = waiting.result(timeout=10)
        assert answer.json()["status"] == "SUCCEEDED"
        assert answer.headers["preference-applied"] == "wait=20"

    def test_waits_until_the_known_version_changes(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        tag = api.client.get(f"/v1/jobs/{job_id}").headers["etag"]
        with ThreadPoolExecutor(1) as pool:
            headers = {"Prefer": "respond-async, wait=20", "If-None-Match": tag}
            waiting = pool.submit(api.client.get, f"/v1/jobs/{job_id}", headers=headers)
            lifecycle.claim(api.database, job_id)
            answer = waiting.result(timeout=10)
        assert answer.status_code == 200
        assert answer.json()["status"] == "PLANNING"

    def test_an_unknown_tag_is_answered_at_once(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.claim(api.database, job_id)
        tag = api.client.get(f"/v1/jobs/{job_id}").headers["etag"]
        with api.database.write() as session:
            # The lease expires: no version grows, and the job reads QUEUED.
            session.execute(update(JobRow).values(lease_expires_at=1))
        answer = api.client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=45", "If-None-Match": tag})
        assert answer.json()["status"] == "QUEUED"
        answer = api.client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=45", "If-None-Match": '"none"'})
        assert answer.json()["status"] == "QUEUED"

    def test_all_lines_of_a_header_are_read(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        tag = api.client.get(f"/v1/jobs/{job_id}").headers["etag"]
        lines = [("If-None-Match", '"one"'), ("If-None-Match", tag), ("Prefer", "respond-async"), ("Prefer", "wait=0")]
        answer = api.client.get(f"/v1/jobs/{job_id}", headers=lines)
        assert answer.status_code == 304
        assert answer.headers["preference-applied"] == "wait=0"

    def test_an_unchanged_job_is_304_at_the_end(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        tag = api.client.get(f"/v1/jobs/{job_id}").headers["etag"]
        started = time.monotonic()
        answer = api.client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=1", "If-None-Match": tag})
        assert answer.status_code == 304
        assert time.monotonic() - started >= 1
        assert answer.headers["preference-applied"] == "wait=1"

    def test_a_longer_wait_than_allowed_is_shortened(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
        answer = api.client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=100000"})
        assert answer.headers["preference-applied"] == "wait=45"

    def test_a_job_that_is_deleted_during_the_wait_is_404(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        tag = api.client.get(f"/v1/jobs/{job_id}").headers["etag"]
        api.client.post(f"/v1/jobs/{job_id}/cancel")
        assert api.client.delete(f"/v1/jobs/{job_id}").status_code == 204
        answer = api.client.get(f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20", "If-None-Match": tag})
        assert code(answer) == "job_not_found"

    def test_hundreds_of_waiting_requests_do_not_block_others(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        threads = threading.active_count()
        with ThreadPoolExecutor(100) as pool:
            waiting = [
                pool.submit(api.client.get, f"/v1/jobs/{job_id}", headers={"Prefer": "wait=20"}) for _ in range(100)
            ]
            # More than the 40 threads that serve handlers: none of them may be held by who waits.
            assert api.client.get("/v1/jobs").status_code == 200
            lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
            assert {answer.result(timeout=20).json()["status"] for answer in waiting} == {"FAILED"}
        assert threads > 0


@pytest.mark.both_databases
class TestCancel:
    def test_a_queued_job_ends_at_once(self, api: Api) -> None:
        job_id = api.submit().json()["id"]
        answer = api.client.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.status_code == 202
        assert answer.json()["status"] == "CANCELLED"
        assert answer.json()["error"]["code"] == "cancelled"
        assert answer.json()["finished_at"] is not None

    def test_a_running_job_is_cancelled_by_its_worker(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.run(api.database, lifecycle.claim(api.database, job_id))
        first = api.client.post(f"/v1/jobs/{job_id}/cancel")
        second = api.client.post(f"/v1/jobs/{job_id}/cancel")
        assert (first.status_code, second.status_code) == (202, 202)
        assert first.json()["status"] == "CANCELLING"
        assert first.json() == second.json()
        with api.database.read() as session:
            row = session.get(JobRow, job_id)
            assert row is not None
            assert row.cancel_requested_at is not None

    def test_a_job_whose_lease_expired_ends_at_once(self, api: Api, subtests: pytest.Subtests) -> None:
        for runs in (False, True):
            with subtests.test(runs=runs):
                job_id = lifecycle.insert(api.database)
                held = lifecycle.claim(api.database, job_id)
                if runs:
                    lifecycle.run(api.database, held)
                with api.database.write() as session:
                    session.execute(update(JobRow).values(lease_expires_at=1))
                answer = api.client.post(f"/v1/jobs/{job_id}/cancel")
                assert (answer.status_code, answer.json()["status"]) == (202, "CANCELLED")
                assert answer.json()["error"]["code"] == "cancelled"
                with api.database.write() as session:
                    (attempt,) = attempts_of(session, job_id)
                    assert (attempt.status, attempt.finished_at is not None) == ("CRASHED", True)
                    row = session.get(JobRow, job_id)
                    assert row is not None
                    assert (row.lease_owner, row.lease_expires_at) == (None, None)
                    # The worker that was away comes back too late.
                    now = api.database.now(session)
                    assert leases.renew(session, lifecycle.WORKER, [held], now, 1000) == set()
                    ending = publication.Ending(JobStatus.FAILED, error=lifecycle.FAILURE)
                    assert not publication.publish(session, held, ending, now)

    def test_a_job_that_waits_for_a_retry_is_cancelled_at_once(self, api: Api) -> None:
        limits = {"failure_retries": 2}
        posted = api.submit(limits=limits).json()
        assert (posted["spec"]["limits"]["failure_retries"], posted["waiting_for"]) == (2, "worker")
        held = lifecycle.claim(api.database, posted["id"])
        with api.database.write() as session:
            ending = publication.Ending(JobStatus.FAILED, problems.storage_unavailable("No answer."))
            now = api.database.now(session)
            assert publish_or_retry(session, held, ending, now) is JobStatus.QUEUED
        job = api.client.get(f"/v1/jobs/{posted['id']}").json()
        assert (job["status"], job["waiting_for"], job["finished"], job["error"]) == ("QUEUED", "retry", False, None)
        assert job["next_run_at"] > job["updated_at"]
        answer = api.client.post(f"/v1/jobs/{posted['id']}/cancel").json()
        assert (answer["status"], answer["next_run_at"], answer["waiting_for"]) == ("CANCELLED", None, None)

    def test_a_finished_job_is_refused(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
        answer = api.client.post(f"/v1/jobs/{job_id}/cancel")
        refused(answer, 409, "job_already_finished")


@pytest.mark.both_databases
class TestDelete:
    def test_removes_everything_of_a_finished_job(self, api: Api) -> None:
        answer = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "monday"})
        job_id = answer.json()["id"]
        lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT)
        assert (api.settings.results_dir / job_id).is_dir()
        deleted = api.client.delete(f"/v1/jobs/{job_id}")
        assert (deleted.status_code, deleted.content) == (204, b"")
        assert not (api.settings.results_dir / job_id).exists()
        assert code(api.client.get(f"/v1/jobs/{job_id}")) == "job_not_found"
        again = api.client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "monday"})
        assert again.json()["id"] != job_id

    def test_an_unfinished_job_is_kept(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[JobStatus] = [JobStatus.QUEUED, JobStatus.RUNNING]
        for status in cases:
            with subtests.test(status=status):
                job_id = lifecycle.insert(api.database)
                if status is JobStatus.RUNNING:
                    lifecycle.run(api.database, lifecycle.claim(api.database, job_id))
                answer = api.client.delete(f"/v1/jobs/{job_id}")
                refused(answer, 409, "job_not_finished")


class TestStateOfANewerVersion:
    """A newer version of the service stored a state that this one does not know: while an upgrade is under way, or
    after a downgrade."""

    @pytest.fixture
    def job_id(self, api: Api) -> str:
        return self.moved_on(api, lifecycle.insert(api.database))

    def moved_on(self, api: Api, job_id: str, **values: object) -> str:
        with api.database.write() as session:
            changed = update(JobRow).where(JobRow.id == job_id)
            session.execute(changed.values(status="PAUSED", version=JobRow.version + 1, **values))
        return job_id

    def finished(self, api: Api) -> str:
        job_id = lifecycle.insert(api.database)
        lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT)
        return self.moved_on(api, job_id)

    def test_the_state_is_shown_by_its_stored_name(self, api: Api, job_id: str) -> None:
        queued, finished = lifecycle.insert(api.database), self.finished(api)
        answer = api.client.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200
        assert (answer.json()["status"], answer.json()["finished"]) == ("PAUSED", False)
        assert answer.headers["retry-after"] == "1", "it may change"
        listed = {job["id"]: (job["status"], job["finished"]) for job in api.client.get("/v1/jobs").json()["jobs"]}
        assert listed == {job_id: ("PAUSED", False), queued: ("QUEUED", False), finished: ("PAUSED", True)}
        assert "retry-after" not in api.client.get(f"/v1/jobs/{finished}").headers

    def test_fields_of_the_newer_version_are_omitted(self, api: Api) -> None:
        """Its workers store the progress and the error of jobs that this version lists."""
        job_id = lifecycle.insert(api.database)
        held = lifecycle.claim(api.database, job_id)
        lifecycle.run(api.database, held)
        later = {"tasks_done": 1, "tasks_total": 4, "eta_ms": 7}
        problem = {**problems.cancelled().model_dump(mode="json"), "severity": "low"}
        with api.database.write() as session:
            session.execute(update(JobRow).values(progress=later, error=problem))
        read = api.client.get(f"/v1/jobs/{job_id}")
        listed = api.client.get("/v1/jobs")
        assert (read.status_code, listed.status_code) == (200, 200)
        for job in (read.json(), *listed.json()["jobs"]):
            assert (job["progress"]["tasks_done"], job["error"]["code"]) == (1, "cancelled")
            assert "eta_ms" not in job["progress"]
            assert "severity" not in job["error"]

    def test_a_wait_ends_with_the_next_change(self, api: Api, job_id: str) -> None:
        known = api.client.get(f"/v1/jobs/{job_id}").headers["etag"]
        same = api.client.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": known, "Prefer": "wait=0"})
        assert same.status_code == 304
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                api.client.get, f"/v1/jobs/{job_id}", headers={"If-None-Match": known, "Prefer": "wait=30"}
            )
            self.moved_on(api, job_id, finished_at=1)
            changed = waiting.result(60)
        assert (changed.status_code, changed.json()["status"], changed.json()["finished"]) == (200, "PAUSED", True)

    def test_events_are_complete_once_it_has_finished(self, api: Api, job_id: str, subtests: pytest.Subtests) -> None:
        for is_finished in (False, True):
            with subtests.test(is_finished=is_finished):
                read = self.finished(api) if is_finished else job_id
                page = api.client.get(f"/v1/jobs/{read}/events", headers={"Accept": "application/json"})
                assert (page.status_code, page.json()["complete"]) == (200, is_finished)

    def test_reports_that_do_not_exist_yet_are_refused(self, api: Api, job_id: str, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, int]] = [("plan", 404), ("metrics", 404), ("result", 409)]
        for part, status in cases:
            with subtests.test(part=part, status=status):
                answer = api.client.get(f"/v1/jobs/{job_id}/{part}")
                assert (answer.status_code, "PAUSED" in answer.json()["detail"]) == (status, True)

    def test_a_request_that_would_change_it_is_refused(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str, dict[str, object] | None]] = [
            ("DELETE", "", None),
            ("POST", "/cancel", None),
            ("POST", "/stop", None),
            ("POST", "/resume", {}),
            ("PATCH", "/settings", {"mini_batch.size": 9}),
        ]
        for method, path, body in cases:
            with subtests.test(method=method, path=path, body=body):
                job_id = self.moved_on(api, api.submit(mode="incremental").json()["id"])
                before = api.client.get(f"/v1/jobs/{job_id}").json()
                answer = api.client.request(method, f"/v1/jobs/{job_id}{path}", json=body)
                refused(answer, 409, "job_state_unknown")
                assert "PAUSED" in answer.json()["detail"]
                assert api.client.get(f"/v1/jobs/{job_id}").json() == before

    def test_a_finished_job_is_like_every_other(self, api: Api) -> None:
        job_id = self.finished(api)
        assert code(api.client.post(f"/v1/jobs/{job_id}/cancel")) == "job_already_finished"
        assert api.client.delete(f"/v1/jobs/{job_id}").status_code == 204
        assert not (api.settings.results_dir / job_id).exists()

    def test_it_can_be_compared_with(self, api: Api, job_id: str) -> None:
        other = api.submit(compare_with=job_id).json()["id"]
        lifecycle.run_whole(api.database, other, api.settings.results_dir, RESULT)
        comparison = api.client.get(f"/v1/jobs/{other}/metrics").json()["comparison"]
        assert (comparison["status"], comparison["before_ms"]) == ("PAUSED", None)

    def test_metrics_can_still_be_scraped(self, api: Api, job_id: str) -> None:
        assert 'evenkeel_jobs{queue="short",status="QUEUED"} 0.0' in api.client.get("/metrics").text
