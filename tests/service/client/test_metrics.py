"""`evenkeel metrics` and `evenkeel skew`."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from service.contract.enums import JobStatus
from service.contract.reports import (
    Comparison,
    EstimateReport,
    HotKey,
    HotKeyReport,
    MetricsReport,
    Quantiles,
    SavingsReport,
    SimulatedSaving,
    SkewReport,
    StageSkew,
)
from service.store.publication import AttemptMetrics, Ending, PublishedResult
from tests.support import lifecycle
from tests.support.scripted import answers, scripted
from tests.support.served import Evenkeel, Served

TIMES = Quantiles(min=10, p25=20, median=30, p75=40, max=3_000)
STAGE = lifecycle.STAGE.model_copy(update={"stage_id": 3, "duration_ms": TIMES, "shuffle_write_rows": 3_000_000})
SKEW = SkewReport(
    skewed=True,
    keys=(
        HotKeyReport(
            table="o",
            columns=("o.uid",),
            role="group key",
            hot_keys=(HotKey(value="N725MQ", share=0.9, estimated_rows=2_700_000),),
            sampled_rows=10_000,
        ),
    ),
    stages=(
        StageSkew(
            stage_id=3, max_over_median=100, slowest_task_ms=3_000, median_task_ms=30, stage_impact=0.95, lost_ms=2_970
        ),
    ),
    lost_ms=2_970,
    advice="Set agg_phase to TWO_PHASE.",
    setting="agg_phase",
    value="TWO_PHASE",
)
METRICS = MetricsReport(
    stages=(STAGE,),
    skew=SKEW,
    savings=SavingsReport(
        simulated=SimulatedSaving(slots=64, actual_ms=3_000, balanced_ms=400, saved_ms=2_600, stages=()), estimated=()
    ),
    comparison=Comparison(
        job_id="0b9f",
        status="SUCCEEDED",
        before_ms=5_000,
        after_ms=3_100,
        saved_ms=1_900,
        ratio=0.62,
        same_query=True,
        settings_changed={},
    ),
    planning_ms=1,
    execution_ms=3_100,
    result_rows=None,
    result_bytes=None,
).model_dump(mode="json")
ESTIMATES = EstimateReport(
    choices=(),
    estimated_rows_read=None,
    measured_rows_read=0,
    estimated_rows_shuffled=None,
    measured_rows_shuffled=0,
    estimated_rows_on_hottest_task=None,
    measured_rows_on_hottest_task=None,
    estimated_result_rows=None,
    all_estimated=False,
    summary="Nothing.",
).model_dump(mode="json")


@pytest.fixture
def job_id(served: Served) -> str:
    job_id = lifecycle.insert(served.database)
    held = lifecycle.claim(served.database, job_id)
    lifecycle.plan(served.database, held)
    lifecycle.run(served.database, held)
    measured = AttemptMetrics(execution_ms=3_100, stages=(STAGE,), skew=SKEW, progress=lifecycle.DONE)
    ending = Ending(JobStatus.SUCCEEDED, result=PublishedResult("nowhere", 0, 0), metrics=measured)
    lifecycle.end(served.database, held, ending)
    return job_id


def test_skew_shows_the_advice(job_id: str, evenkeel: Evenkeel) -> None:
    printed = evenkeel("skew", job_id).stdout
    assert printed.startswith("Skewed, 2.97 s lost\nSet agg_phase to TWO_PHASE.\n")
    assert "--set agg_phase=TWO_PHASE" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["o.uid", "group", "key", "N725MQ", "90.0%", "2,700,000"] in rows
    assert ["3", "100.0x", "3.00", "s", "0.03", "s", "95%", "2.97", "s"] in rows
    assert json.loads(evenkeel("skew", job_id, "--json").stdout)["setting"] == "agg_phase"


def test_metrics_show_stages_and_skew(job_id: str, evenkeel: Evenkeel) -> None:
    printed = evenkeel("metrics", job_id).stdout
    for text in ("running 3.10 s", "3,000,000 rows", "0.03 s", "3.00 s", "Skewed, 2.97 s lost"):
        assert text in printed
    assert json.loads(evenkeel("metrics", job_id, "--json").stdout)["execution_ms"] == 3_100


def test_job_without_skew(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    lifecycle.run_whole(served.database, job_id, served.settings.results_dir, pa.table({"a": pa.array([1])}))
    printed = evenkeel("skew", job_id).stdout
    assert printed == "Not skewed\nNothing needs to change.\n"


def test_savings_and_comparison_are_shown(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(answers(200, METRICS)) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        printed = evenkeel("skew", "1", "--slots", "64").stdout
    assert service.seen[0].path == "/v1/jobs/1/metrics?slots=64"
    assert "On 64 slots its stages take 3.00 s, and 0.40 s with even tasks.\n" in printed
    assert "It ran for 3.10 s, 0b9f for 5.00 s.\n" in printed


def test_metrics_of_older_and_newer_services_are_accepted(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    older = {name: value for name, value in METRICS.items() if name not in {"savings", "comparison", "slots"}}
    newer = {
        **METRICS,
        "comparison": {**METRICS["comparison"], "status": "PAUSED"},
        "stages": [{**METRICS["stages"][0], "new": 1}],
        "estimates": {
            **ESTIMATES,
            "wrong": [{"quantity": "new", "node_id": 1, "node": "x", "estimated": 1, "measured": 2, "factor": 2}],
        },
        "new": {"x": 1},
    }
    with scripted(answers(200, older), answers(200, newer)) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        for _ in range(2):
            assert "running 3.10 s" in evenkeel("metrics", "1").stdout


def test_wrong_estimates_are_shown(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[dict[str, Any]] = [
        {"quantity": "rows_emitted", "node_id": 6, "node": "Join INNER", "estimated": 20_000_000, "measured": 2_000},
        {"quantity": "rows_read", "node_id": None, "node": None, "estimated": 100, "measured": 2_000},
        {"quantity": "rows_shuffled", "node_id": 3, "node": "Join", "rule": "r", "estimated": 1, "measured": 2_000},
        {
            "quantity": "rows_shuffled",
            "node_id": 3,
            "node": "Join",
            "rule": "r",
            "estimated": 40_000,
            "measured": 2_000,
        },
    ]
    estimates = {**ESTIMATES, "wrong": [{**one, "factor": 20, "new": 1} for one in wrong]}
    with scripted(answers(200, {**METRICS, "estimates": estimates})) as service:
        monkeypatch.setenv("EVENKEEL_URL", service.url)
        shown = evenkeel("metrics", "1").stdout
    for line in (
        "rows emitted of #6 Join INNER: 20,000,000 estimated, 2,000 measured, 20 times too high.",
        "rows read: 100 estimated, 2,000 measured, 20 times too low.",
        "rows shuffled of #3 Join, estimated by r: 1 estimated, 2,000 measured, 20 times too low.",
        "rows shuffled of #3 Join, estimated by r: 40,000 estimated, at most 2,000 possible, 20 times too high.",
    ):
        assert f"The estimate was wrong: {line}\n" in shown


def test_job_without_metrics(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("skew", lifecycle.insert(served.database))
    assert (result.exit_code, "[metrics_not_ready]" in result.stderr) == (8, True)
