"""Plans and metrics as workers stored them, explanations and profiles."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import httpx
import pyarrow as pa
import pytest
from sqlalchemy import func, select

from service.contract import problems
from service.contract.enums import JobStatus
from service.contract.problems import Issue, Problem
from service.contract.reports import (
    ChoiceOutcome,
    EstimatedSaving,
    EstimateReport,
    HotKeyReport,
    NodeFigures,
    OperatorMetrics,
    OperatorReport,
    Quantiles,
    Quantity,
    RunFigures,
    TableStatistics,
    WrongEstimate,
)
from service.store import workers
from service.store.attempts import Claim
from service.store.publication import AttemptMetrics, Ending, add_metrics
from service.store.tables import JobRow, PlanRow, StageMetricsRow
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.api import Api, refused
from tests.support.lifecycle import SPEC

ORDERS = TableStatistics(table="k0", files=1, bytes=900, rows=3, rows_are_exact=True)
RESULT = pa.table({"uid": pa.array([1, 2], pa.int64())})


def explained(api: Api, path: str, body: Mapping[str, object], work: Callable[[Claim], None]) -> httpx.Response:
    """Returns the response to `body` when a worker does `work` for the requested explanation."""
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(api.client.post, path, json=body)
        job_id = None
        deadline = time.monotonic() + 10
        while job_id is None:
            assert time.monotonic() < deadline
            with api.database.read() as session:
                job_id = session.scalars(select(JobRow.id).where(JobRow.kind == "explain")).one_or_none()
        assert api.client.get(f"/v1/jobs/{job_id}").json()["code"] == "job_not_found"
        assert api.client.get("/v1/jobs").json()["jobs"] == []
        work(lifecycle.claim(api.database, job_id))
        answer: httpx.Response = asking.result(timeout=10)
    with api.database.read() as session:
        assert session.scalar(select(func.count()).select_from(JobRow)) == 0
    return answer


class TestPlan:
    def test_is_returned_as_the_worker_stored_it(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.plan(api.database, lifecycle.claim(api.database, job_id))
        answer = api.client.get(f"/v1/jobs/{job_id}/plan")
        assert answer.status_code == 200
        assert answer.json() == lifecycle.REPORT.model_dump(mode="json")

    def test_a_known_etag_gives_304(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.plan(api.database, lifecycle.claim(api.database, job_id))
        sent = api.client.get(f"/v1/jobs/{job_id}/plan")
        again = api.client.get(f"/v1/jobs/{job_id}/plan", headers={"If-None-Match": f'"x", W/{sent.headers["ETag"]}'})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", sent.headers["ETag"])
        other = api.client.get(f"/v1/jobs/{job_id}/plan", headers={"If-None-Match": '"another"'})
        assert (other.status_code, other.content) == (200, sent.content)

    def test_is_not_ready_before_planning(self, api: Api) -> None:
        answer = api.client.get(f"/v1/jobs/{lifecycle.insert(api.database)}/plan")
        refused(answer, 404, "plan_not_ready")


class TestMetrics:
    def test_are_those_of_the_attempt_that_ended_the_job(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT)
        metrics = api.client.get(f"/v1/jobs/{job_id}/metrics").json()
        assert metrics["stages"] == [lifecycle.STAGE.model_dump(mode="json")]
        assert metrics["skew"]["skewed"] is False
        assert (metrics["planning_ms"], metrics["execution_ms"], metrics["result_rows"]) == (7, 12, 2)

    @pytest.mark.both_databases
    def test_metrics_of_the_previous_version_have_no_ids_and_no_wrong_estimates(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        metrics = replace(timed(1010, FIGURES), skew=HOT, estimates=ESTIMATES)
        lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT, metrics=metrics)
        now = api.client.get(f"/v1/jobs/{job_id}/metrics").json()
        with api.database.write() as session:
            row = session.scalars(select(PlanRow).where(PlanRow.job_id == job_id)).one()
            row.skew, row.estimates, row.figures = (_as_before(one) for one in (row.skew, row.estimates, row.figures))
        before = api.client.get(f"/v1/jobs/{job_id}/metrics").json()
        assert before["estimates"] == {**now["estimates"], "wrong": [], "choices": before["estimates"]["choices"]}
        (choice,) = before["estimates"]["choices"]
        assert (choice["node_id"], choice["is_wrong"], choice["node"]) == (None, False, "Join")
        (saving,) = before["savings"]["estimated"]
        assert (saving["node_id"], saving["is_wrong"], saving["ratio"]) == (None, False, 0.25)
        (key,) = before["skew"]["keys"]
        assert (key["rows_on_one_task"], key["estimate_is_wrong"], key["role"]) == (None, False, "join key")
        assert before["nodes"] == now["nodes"]

    def test_are_not_ready_before_the_run(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        lifecycle.plan(api.database, lifecycle.claim(api.database, job_id))
        answer = api.client.get(f"/v1/jobs/{job_id}/metrics")
        refused(answer, 404, "metrics_not_ready")

    @pytest.mark.both_databases
    def test_a_request_waits_for_metrics_that_follow_the_end(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        held = lifecycle.claim(api.database, job_id)
        lifecycle.plan(api.database, held)
        ended = AttemptMetrics(1010, (), None, lifecycle.DONE)
        lifecycle.end(api.database, held, Ending(JobStatus.SUCCEEDED, metrics=ended))
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(api.client.get, f"/v1/jobs/{job_id}/metrics")
            time.sleep(0.1)
            with api.database.write() as session:
                add_metrics(session, held, timed(1010, FIGURES))
            answer = asking.result(timeout=10)
        assert (answer.status_code, answer.json()["slots"], len(answer.json()["stages"])) == (200, 5, 1)

    def test_metrics_of_a_deleted_job_are_not_stored(self, api: Api) -> None:
        job_id = lifecycle.insert(api.database)
        held = lifecycle.claim(api.database, job_id)
        lifecycle.plan(api.database, held)
        lifecycle.end(api.database, held, Ending(JobStatus.SUCCEEDED))
        api.client.delete(f"/v1/jobs/{job_id}").raise_for_status()
        with api.database.write() as session:
            add_metrics(session, held, timed(1010))
            assert session.scalars(select(StageMetricsRow)).all() == []

    def test_the_error_says_why_there_are_none(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[JobStatus, str]] = [
            (JobStatus.SUCCEEDED, "SUCCEEDED, but its worker received no stage metrics"),
            (JobStatus.FAILED, "FAILED and none of its attempts"),
        ]
        for status, words in cases:
            with subtests.test(status=status, words=words):
                job_id = lifecycle.insert(api.database)
                held = lifecycle.claim(api.database, job_id)
                lifecycle.end(api.database, held, Ending(status))
                answer = api.client.get(f"/v1/jobs/{job_id}/metrics")
                assert answer.json()["code"] == "metrics_not_ready"
                assert words in answer.json()["detail"]


def timed(execution_ms: int, figures: RunFigures | None = None) -> AttemptMetrics:
    """Returns measurements of a worker of this or an earlier version: a stage of five tasks, one of which is slow."""
    times = Quantiles(min=10, p25=10, median=10, p75=10, max=1000)
    stage = lifecycle.STAGE.model_copy(update={"tasks": 5, "duration_ms": times})
    return AttemptMetrics(execution_ms, (stage,), lifecycle.SKEW, lifecycle.DONE, figures=figures)


OPERATOR = OperatorMetrics(
    id=1, operator="HashAggregate", detail="", inputs=(), rows=2, bytes=None, time_ms=3, spilled_bytes=0, node=1
)
FIGURES = RunFigures(
    slots=5,
    run_by=OperatorReport(operators=(OPERATOR,), nodes=(NodeFigures(id=1, rows=2, bytes=None, time_ms=3),)),
    estimated=(
        EstimatedSaving(
            rule="skewed_join",
            node="Join",
            alternative="ISOLATE",
            cost=200,
            spark_alternative="NONE",
            spark_cost=800,
            ratio=0.25,
        ),
    ),
)


CHOICE = ChoiceOutcome(
    rule="skewed_join",
    node="Join",
    node_id=4,
    alternative="ISOLATE",
    estimated_rows_shuffled=50_000,
    estimated_rows_on_hottest_task=1,
    measured_rows_shuffled=2_000,
    measured_rows_on_hottest_task=1,
    is_wrong=True,
)
ESTIMATES = EstimateReport(
    choices=(CHOICE,),
    estimated_rows_read=1,
    measured_rows_read=1,
    estimated_rows_shuffled=50_000,
    measured_rows_shuffled=2_000,
    estimated_rows_on_hottest_task=1,
    measured_rows_on_hottest_task=1,
    estimated_result_rows=1,
    all_estimated=False,
    summary="So it was.",
    wrong=(
        WrongEstimate(
            quantity=Quantity.ROWS_SHUFFLED, node_id=4, node="Join", estimated=50_000, measured=2_000, factor=25
        ),
    ),
)
HOT = lifecycle.SKEW.model_copy(
    update={
        "keys": (
            HotKeyReport(
                table="o",
                columns=("o.uid",),
                role="join key",
                hot_keys=(),
                sampled_rows=1,
                rows_on_one_task=7,
                estimate_is_wrong=True,
            ),
        )
    }
)


def _as_before(stored: Any) -> Any:
    """Returns a report as a version without node ids stored it."""
    added = {"node_id", "is_wrong", "wrong", "rows_on_one_task", "estimate_is_wrong"}
    if isinstance(stored, dict):
        return {name: _as_before(value) for name, value in stored.items() if name not in added}
    return [_as_before(one) for one in stored] if isinstance(stored, list) else stored


class _Metrics:
    """Jobs that have run, and their metrics."""

    def metrics(self, api: Api, job_id: str, slots: int | None = None) -> dict[str, Any]:
        query = "" if slots is None else f"?slots={slots}"
        answer = api.client.get(f"/v1/jobs/{job_id}/metrics{query}")
        assert answer.status_code == 200
        return dict(answer.json())

    def ran(self, api: Api, metrics: AttemptMetrics, **changes: object) -> str:
        job_id = str(api.submit(**changes).json()["id"])
        lifecycle.run_whole(api.database, job_id, api.settings.results_dir, RESULT, metrics=metrics)
        return job_id


class TestFigures(_Metrics):
    def test_operators_nodes_and_savings(self, api: Api) -> None:
        told = self.metrics(api, self.ran(api, timed(1010, FIGURES)))
        assert told["operators"] == [OPERATOR.model_dump(mode="json")]
        assert told["nodes"] == [{"id": 1, "rows": 2, "bytes": None, "time_ms": 3}]
        assert (told["operators_truncated"], told["slots"], told["comparison"]) == (False, 5, None)
        simulated = told["savings"]["simulated"]
        assert (simulated["slots"], simulated["actual_ms"], simulated["balanced_ms"], simulated["saved_ms"]) == (
            5,
            1000,
            208,
            792,
        )
        assert told["savings"]["estimated"][0]["ratio"] == 0.25

    def test_truncated_operators_are_stored_as_by_earlier_versions(self, api: Api) -> None:
        job_id = self.ran(api, timed(1010, FIGURES))
        with api.database.write() as session:
            row = session.scalars(select(PlanRow).where(PlanRow.job_id == job_id)).one()
            figures = row.figures or {}
            assert figures["run_by"]["is_cut"] is False
            row.figures = {**figures, "run_by": {**figures["run_by"], "is_cut": True}}
        assert self.metrics(api, job_id)["operators_truncated"] is True

    def test_savings_for_another_number_of_slots(self, api: Api) -> None:
        job_id = self.ran(api, timed(1010, FIGURES))
        assert self.metrics(api, job_id, 1)["savings"]["simulated"]["actual_ms"] == 1040
        at_many = self.metrics(api, job_id, 100_000)
        assert (at_many["savings"]["simulated"]["slots"], at_many["slots"]) == (100_000, 5)

    def test_a_known_etag_gives_304(self, api: Api) -> None:
        path = f"/v1/jobs/{self.ran(api, timed(1010))}/metrics"
        tag = api.client.get(path).headers["ETag"]
        assert api.client.get(path, headers={"If-None-Match": tag}).status_code == 304
        # What others are told is another report.
        assert api.client.get(f"{path}?slots=3", headers={"If-None-Match": tag}).status_code == 200

    def test_slots_are_between_1_and_100000(self, api: Api, subtests: pytest.Subtests) -> None:
        for slots in ("0", "100001", "-1", "many", ""):
            with subtests.test(slots=slots):
                job_id = self.ran(api, timed(1010, FIGURES))
                answer = api.client.get(f"/v1/jobs/{job_id}/metrics?slots={slots}")
                refused(answer, 422, "invalid_request")

    def test_a_job_of_an_earlier_version_lacks_newer_fields(self, api: Api) -> None:
        job_id = self.ran(api, timed(1010))
        told = self.metrics(api, job_id)
        assert (told["operators"], told["nodes"], told["slots"]) == ([], [], None)
        assert told["savings"] == {"simulated": None, "estimated": []}
        assert self.metrics(api, job_id, 5)["savings"]["simulated"]["saved_ms"] == 792


class TestComparison(_Metrics):
    def test_both_succeeded(self, api: Api) -> None:
        before = self.ran(api, timed(1010))
        settings = {"agg_phase": "ONE_PHASE", "skew": {"factor": 8}, "mini_batch.size": 5}
        after = self.ran(api, timed(505), compare_with=before, settings=settings)
        assert self.metrics(api, after)["comparison"] == {
            "job_id": before,
            "status": "SUCCEEDED",
            "before_ms": 1010,
            "after_ms": 505,
            "saved_ms": 505,
            "ratio": 0.5,
            "same_query": True,
            "settings_changed": {
                "agg_phase": ["AUTO", "ONE_PHASE"],
                "mini_batch.size": ["none", "5"],
                "skew.factor": ["4.0", "8.0"],
            },
        }
        assert self.metrics(api, before)["comparison"] is None
        assert api.client.get(f"/v1/jobs/{after}").json()["spec"]["compare_with"] == before

    def test_another_query_that_took_no_time(self, api: Api) -> None:
        before = self.ran(api, timed(0), sql="SELECT COUNT(*) AS n FROM orders")
        told = self.metrics(api, self.ran(api, timed(7), compare_with=before))["comparison"]
        assert (told["same_query"], told["saved_ms"], told["ratio"]) == (False, -7, None)

    def test_a_first_run_that_failed_counts(self, api: Api) -> None:
        before = self.ran(api, timed(1000))
        after = self.ran(api, timed(1000), compare_with=before)
        with api.database.write() as session:
            plan = session.scalars(select(PlanRow).where(PlanRow.job_id == before)).one()
            plan.details = {**(plan.details or {}), "first_run": {"execution_ms": 500}}
        told = self.metrics(api, after)["comparison"]
        assert (told["before_ms"], told["after_ms"], told["saved_ms"]) == (1500, 1000, 500)

    def test_the_other_job_has_not_succeeded(self, api: Api) -> None:
        waiting = str(api.submit().json()["id"])
        after = self.ran(api, timed(7), compare_with=waiting)
        told = self.metrics(api, after)["comparison"]
        assert (told["status"], told["before_ms"], told["after_ms"], told["saved_ms"]) == ("QUEUED", None, None, None)
        lifecycle.fail(api.database, lifecycle.claim(api.database, waiting))
        told = self.metrics(api, after)["comparison"]
        assert (told["status"], told["before_ms"]) == ("FAILED", None)

    def test_is_null_after_the_other_job_is_deleted(self, api: Api) -> None:
        before = self.ran(api, timed(10))
        after = self.ran(api, timed(7), compare_with=before)
        assert api.client.delete(f"/v1/jobs/{before}").status_code == 204
        assert self.metrics(api, after)["comparison"] is None

    def test_only_a_batch_job_of_the_tenant_can_be_named(self, api: Api) -> None:
        stranger = lifecycle.insert(api.database, tenant="stranger")
        streaming = str(api.submit(mode="continuous").json()["id"])
        for named, code in (
            (stranger, "unknown_job"),
            ("e0a9a1ab-1ff8-4d24-8f9e-cb6b3df1f6c4", "unknown_job"),
            ("no id", "unknown_job"),
            (streaming, "job_not_comparable"),
        ):
            problem = api.submit(compare_with=named).json()
            assert (problem["status"], problem["code"]) == (422, code)
            assert problem["errors"][0]["pointer"] == "/compare_with"

    def test_a_job_of_another_tenant_is_never_shown(self, api: Api) -> None:
        """However the name came to be there."""
        stranger = lifecycle.insert(api.database, tenant="stranger")
        job_id = self.ran(api, timed(7))
        with api.database.write() as session:
            row = session.get_one(JobRow, job_id)
            row.spec = {**row.spec, "compare_with": stranger}
        assert self.metrics(api, job_id)["comparison"] is None


class TestExplain:
    @pytest.mark.both_databases
    def test_answers_with_the_workers_plan(self, api: Api) -> None:
        def work(held: Claim) -> None:
            lifecycle.plan(api.database, held)
            lifecycle.end(api.database, held, Ending(JobStatus.SUCCEEDED))

        answer = explained(api, "/v1/explain", SPEC, work)
        assert answer.status_code == 200
        assert answer.json() == lifecycle.REPORT.model_dump(mode="json")

    def test_answers_with_the_workers_problem(self, api: Api) -> None:
        answer = explained(api, "/v1/explain", SPEC, lambda held: lifecycle.fail(api.database, held))
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "engine_error"
        assert answer.json()["request_id"] == answer.headers["x-request-id"]

    @pytest.mark.withstands(
        "a tenant floods the workers with explanations",
        kind="attack",
        how="8 concurrent posts to `/v1/explain` with a limit of 3",
        times=1,
        guaranteed="3 are planned; the others get 429 with `Retry-After`",
    )
    @pytest.mark.parametrize(("tenant_limits", "explain_timeout_seconds"), [({"EXPLANATIONS": "3"}, 120)])
    @pytest.mark.both_databases
    def test_the_explanations_of_a_tenant_are_limited(self, api: Api) -> None:
        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(api.client.post, "/v1/explain", json=SPEC) for _ in range(8)]
            limited = [answer.result() for answer in islice(as_completed(asking, timeout=60), 5)]
            for answer in limited:
                refused(answer, 429, "too_many_explanations")
                assert int(answer.headers["retry-after"]) > 0
            # A job that is run is no explanation.
            assert api.client.post("/v1/jobs", json=SPEC).status_code == 202
            with api.database.read() as session:
                waiting = session.scalars(select(JobRow.id).where(JobRow.kind == "explain")).all()
            for job_id in waiting:
                held = lifecycle.claim(api.database, job_id)
                lifecycle.plan(api.database, held)
                lifecycle.end(api.database, held, Ending(JobStatus.SUCCEEDED))
            statuses = sorted(answer.result(timeout=60).status_code for answer in asking)
        assert statuses == [200] * 3 + [429] * 5
        with api.database.read() as session:
            assert session.scalar(select(func.count()).where(JobRow.kind == "explain")) == 0

    def test_a_timeout_in_the_worker_is_503(self, api: Api) -> None:
        def work(held: Claim) -> None:
            lifecycle.end(api.database, held, Ending(JobStatus.TIMED_OUT, problems.timed_out(held.timeout_ms)))

        answer = explained(api, "/v1/explain", SPEC, work)
        refused(answer, 503, "worker_unavailable")

    @pytest.mark.parametrize("explain_timeout_seconds", [0.2])
    def test_without_a_worker_is_503(self, api: Api, explain_timeout_seconds: float) -> None:
        answer = api.client.post("/v1/explain", json=SPEC)
        refused(answer, 503, "worker_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        with api.database.read() as session:
            assert session.scalar(select(func.count()).select_from(JobRow)) == 0


class TestProfiles:
    BODY: ClassVar[dict[str, object]] = {
        "table": {"format": "parquet", "path": "orders.parquet"},
        "keys": [["uid"], ["uid", "amount"]],
        "slots": 8,
    }

    def test_a_worker_plans_the_query_that_groups_by_the_keys(self, api: Api) -> None:
        seen: list[object] = []

        def work(held: Claim) -> None:
            seen.append(held.spec)
            lifecycle.plan(api.database, held, lifecycle.REPORT.model_copy(update={"tables": (ORDERS,)}))
            lifecycle.end(api.database, held, Ending(JobStatus.SUCCEEDED))

        answer = explained(api, "/v1/profiles", self.BODY, work)
        assert answer.status_code == 200, answer.text
        assert [key["columns"] for key in answer.json()["keys"]] == [["uid"], ["uid", "amount"]]
        assert [key["slots"] for key in answer.json()["keys"]] == [8, 8]
        assert "k1.`amount`" in json.dumps(seen)

    def test_the_default_of_slots_is_that_of_the_largest_live_worker(self, api: Api) -> None:
        def work(held: Claim) -> None:
            with api.database.write() as session:
                now = api.database.now(session)
                for worker, slots, ago_ms in (("small", 4, 0), ("large", 64, 0), ("gone", 999, 3_600_000)):
                    facts = WorkerFacts(queues="short", spark_state="ready", slots=slots)
                    workers.record_heartbeat(session, worker, now - ago_ms, "0.1.0", facts)
            lifecycle.plan(api.database, held, lifecycle.REPORT.model_copy(update={"tables": (ORDERS,)}))
            lifecycle.end(api.database, held, Ending(JobStatus.SUCCEEDED))

        body = {name: value for name, value in self.BODY.items() if name != "slots"}
        assert [key["slots"] for key in explained(api, "/v1/profiles", body, work).json()["keys"]] == [64, 64]

    @pytest.mark.parametrize(
        ("changes", "code", "pointer"),
        [
            ({"keys": [["uid"], ["uid", "amont"]]}, "unknown_column", "/keys/1/1"),
            ({"keys": [["amont"]]}, "unknown_column", "/keys/0/0"),
            ({"keys": [["uid`, (SELECT 1)"]]}, "unknown_column", "/keys/0/0"),
            ({"table": {"format": "parquet", "path": "missing/"}}, "path_not_found", "/table/path"),
            ({"table": {"format": "parquet", "path": "../x"}}, "path_outside_data_roots", "/table/path"),
            ({"keys": []}, "invalid_request", "/keys"),
            ({"table": {"format": "xml", "path": "missing"}}, "path_not_found", "/table/path"),
        ],
        ids=str,
    )
    def test_an_error_points_to_the_posted_field(
        self, api: Api, changes: dict[str, object], code: str, pointer: str
    ) -> None:
        answer = api.client.post("/v1/profiles", json={**self.BODY, **changes})
        assert (answer.status_code, answer.json()["code"]) == (422, code)
        assert answer.json()["errors"][0]["pointer"] == pointer
        assert "k0." not in answer.text

    def test_names_of_files_are_shown_unchanged(self, api: Api) -> None:
        table = {"format": "parquet", "path": "k0.parquet"}
        answer = api.client.post("/v1/profiles", json={**self.BODY, "table": table})
        assert answer.json()["detail"].startswith("There is no file or directory 'k0.parquet'.")

    def test_an_error_of_the_worker_points_to_the_posted_field(self, api: Api) -> None:
        issue = Issue(
            code="invalid_cast", detail="k1.amount is no number", pointer="/query/source/queries/1/group_by/1"
        )
        problem = Problem(
            type="/problems/invalid_cast",
            title="Invalid cast",
            status=422,
            detail="x",
            code="invalid_cast",
            errors=(issue,),
        )

        def work(held: Claim) -> None:
            lifecycle.end(api.database, held, Ending(JobStatus.FAILED, problem))

        (told,) = explained(api, "/v1/profiles", self.BODY, work).json()["errors"]
        assert (told["pointer"], told["detail"]) == ("/keys/1/1", "amount is no number")

    @pytest.mark.parametrize("explain_timeout_seconds", [0.2])
    def test_without_a_worker_it_is_refused_and_deleted(self, api: Api) -> None:
        answer = api.client.post("/v1/profiles", json=self.BODY)
        refused(answer, 503, "worker_unavailable")
        with api.database.read() as session:
            assert session.scalar(select(func.count()).select_from(JobRow)) == 0
