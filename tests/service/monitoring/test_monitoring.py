"""Rules and dashboard query only served metrics, and every alert fires for its cause alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from service.contract.enums import JobStatus, Queue, WorkerStatus
from service.monitoring.metrics import API_METRICS, WORKER_METRICS, MetricType
from tests.support.promql import Samples, evaluate, vector_selectors

FOLDER = Path(__file__).parents[3] / "service" / "monitoring"
RULES = yaml.safe_load((FOLDER / "prometheus-rules.yml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))

ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {
    **{name: rule["expr"] for name, rule in ALERTS.items()},
    **{
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
        for panel in PANELS
        for target in panel["targets"]
    },
}
OF_PROMETHEUS = {"job", "instance"}
"""Labels that the scrape adds."""

VALUES = {
    "status": {*JobStatus, *WorkerStatus},
    "queue": {*Queue},
    "part": {"process", "jvm"},
}
"""Every value of these labels; the status of a request is a number."""


def series() -> Iterator[tuple[str, set[str]]]:
    """Every series that is served, with its labels."""
    yield "up", set(OF_PROMETHEUS)
    for metric in (*API_METRICS, *WORKER_METRICS):
        labels = {*metric.labels, *OF_PROMETHEUS}
        if metric.type is MetricType.HISTOGRAM:
            yield f"{metric.name}_bucket", {*labels, "le"}
            yield f"{metric.name}_count", labels
            yield f"{metric.name}_sum", labels
        else:
            yield metric.name, labels


SERIES = dict(series())


def grouped_by(expression: Any) -> Iterator[str]:
    modifier = getattr(expression, "modifier", None)
    yield from getattr(modifier, "labels", None) or ()
    for name in ("lhs", "rhs", "expr"):
        part = getattr(expression, name, None)
        if part is not None:
            yield from grouped_by(part)
    for argument in getattr(expression, "args", ()):
        yield from grouped_by(argument)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_uses_served_metrics(name: str) -> None:
    expression = promql_parser.parse(EXPRESSIONS[name])
    selectors = list(vector_selectors(expression))
    assert selectors
    known: set[str] = set()
    for selector in selectors:
        assert selector.name in SERIES
        known |= SERIES[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in SERIES[selector.name]
            values = VALUES.get(matcher.name)
            if values is not None and not selector.name.startswith("evenkeel_http"):
                assert set(matcher.value.split("|")) <= {str(value) for value in values}
    assert set(grouped_by(expression)) <= known


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_severity_and_advice(name: str) -> None:
    rule = ALERTS[name]
    assert re.fullmatch(r"Evenkeel[A-Z][A-Za-z]+", name)
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "runbook"}
    assert all(text.endswith((".", "?")) for text in rule["annotations"].values())


def test_the_rules_are_a_file_of_rules() -> None:
    assert set(RULES) == {"groups"}
    names = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
    assert len(names) == len(set(names)) == len(ALERTS)
    assert all(set(group) == {"name", "rules"} for group in RULES["groups"])


def test_runbooks_name_log_events_commands_and_variables_that_exist() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.parents[1].glob("[sw]*/**/*.py"))
    runbooks = " ".join(rule["annotations"]["runbook"] for rule in ALERTS.values())
    events = re.findall(r"`([a-z]+_[a-z_]+)`", runbooks)
    assert len(events) >= 4
    assert [event for event in events if f'"{event}"' not in source] == []


JOBS = ("evenkeel-api", "evenkeel-worker")
API: Samples = {
    "up": [({"job": job}, 1) for job in JOBS],
    "evenkeel_database_up": [({"instance": "a"}, 1), ({"instance": "b"}, 1)],
    "evenkeel_broker_up": [({"instance": "a"}, 1), ({"instance": "b"}, 1)],
    "evenkeel_build_info": [({"instance": "a", "version": "1"}, 1), ({"instance": "b", "version": "1"}, 1)],
    "evenkeel_workers": [
        ({"instance": process, "status": status.value}, float(status is WorkerStatus.READY))
        for process in "ab"
        for status in WorkerStatus
    ],
    "evenkeel_oldest_queued_seconds": [({"queue": "short"}, 5), ({"queue": "long"}, 3000)],
    "evenkeel_jobs_ended_recently": [({"status": "SUCCEEDED"}, 100), ({"status": "FAILED"}, 99)],
    "evenkeel_expired_leases": [({"instance": "a"}, 0)],
    "evenkeel_outbox_messages": [({"instance": "a"}, 0)],
    "evenkeel_http_request_duration_seconds_count": [
        ({"route": "/v1/jobs", "method": "POST", "status": "202"}, 1000),
        ({"route": "/v1/jobs", "method": "POST", "status": "503"}, 30),
        ({"route": "/readyz", "method": "GET", "status": "503"}, 5000),
    ],
    "evenkeel_http_request_duration_seconds_bucket": [
        ({"route": "/v1/jobs", "method": "POST", "le": "1.0"}, 99),
        ({"route": "/v1/jobs", "method": "POST", "le": "+Inf"}, 100),
        ({"route": "/v1/jobs/{job_id}", "method": "GET", "le": "+Inf"}, 100),
    ],
    "evenkeel_worker_spark_losses_total": [({"instance": "w"}, 1)],
    "evenkeel_worker_leases_lost_total": [({"instance": "w"}, 0)],
}
"""A service that is well."""


def of_workers(**counts: float) -> Samples:
    """As two API processes serve it."""
    return {
        "evenkeel_workers": [
            ({"instance": process, "status": status.value}, counts.get(status.value, 0))
            for process in "ab"
            for status in WorkerStatus
        ]
    }


TROUBLES: dict[str, list[Samples]] = {
    "EvenkeelApiDown": [{"up": [({"job": "evenkeel-api"}, 0)]}, {"up": [({"job": "other"}, 1)]}],
    "EvenkeelWorkerNotScraped": [
        {"up": [({"job": "evenkeel-worker", "instance": "a"}, 1), ({"job": "evenkeel-worker", "instance": "b"}, 0)]},
        {"up": [({"job": "evenkeel-api"}, 1)]},
    ],
    "EvenkeelDatabaseDown": [{"evenkeel_database_up": [({"instance": "a"}, 1), ({"instance": "b"}, 0)]}],
    "EvenkeelBrokerDown": [{"evenkeel_broker_up": [({"instance": "a"}, 0)]}],
    "EvenkeelApiErrors": [
        {
            "evenkeel_http_request_duration_seconds_count": [
                ({"route": "/v1/jobs", "status": "202"}, 10),
                ({"route": "/v1/jobs/{job_id}", "status": "500"}, 1),
            ]
        }
    ],
    "EvenkeelApiSlow": [
        {
            "evenkeel_http_request_duration_seconds_bucket": [
                ({"route": "/v1/jobs", "method": "POST", "le": "1.0"}, 90),
                ({"route": "/v1/jobs", "method": "POST", "le": "5.0"}, 100),
                ({"route": "/v1/jobs", "method": "POST", "le": "+Inf"}, 100),
            ]
        }
    ],
    "EvenkeelVersionsDiffer": [{"evenkeel_build_info": [({"version": "1"}, 1), ({"version": "2"}, 1)]}],
    "EvenkeelNoWorker": [of_workers(), of_workers(SILENT=3)],
    "EvenkeelNoCluster": [of_workers(READY=1, UNAVAILABLE=1)],
    "EvenkeelWorkerLost": [of_workers(READY=1, SILENT=1)],
    "EvenkeelShortJobsWait": [{"evenkeel_oldest_queued_seconds": [({"queue": "short"}, 601)]}],
    "EvenkeelLongJobsWait": [{"evenkeel_oldest_queued_seconds": [({"queue": "long"}, 7201)]}],
    "EvenkeelJobsCrash": [{"evenkeel_jobs_ended_recently": [({"status": "CRASHED"}, 1)]}],
    "EvenkeelJobsFail": [
        {
            "evenkeel_jobs_ended_recently": [
                ({"status": status, "instance": process}, count)
                for status, count in (("SUCCEEDED", 4), ("FAILED", 3), ("TIMED_OUT", 3))
                for process in "ab"
            ]
        }
    ],
    "EvenkeelLeasesExpired": [{"evenkeel_expired_leases": [({"instance": "a"}, 1)]}],
    "EvenkeelMessagesWait": [{"evenkeel_outbox_messages": [({"instance": "a"}, 1)]}],
    "EvenkeelSparkLost": [{"evenkeel_worker_spark_losses_total": [({"instance": "w"}, 2), ({"instance": "v"}, 1)]}],
    "EvenkeelLeasesLost": [{"evenkeel_worker_leases_lost_total": [({"instance": "w"}, 1)]}],
}
"""What each alert is for: of the samples of a service that is well, these are other ones."""


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires_only_for_its_cause(name: str) -> None:
    assert evaluate(ALERTS[name]["expr"], API) == {}
    for trouble in TROUBLES[name]:
        assert evaluate(ALERTS[name]["expr"], {**API, **trouble}) != {}


def test_a_few_failed_jobs_raise_no_alert() -> None:
    few: Samples = {"evenkeel_jobs_ended_recently": [({"status": "FAILED"}, 9)]}
    assert evaluate(ALERTS["EvenkeelJobsFail"]["expr"], {**API, **few}) == {}


class TestDashboard:
    def test_the_data_source_is_chosen_at_import(self) -> None:
        (variable,) = DASHBOARD["templating"]["list"]
        assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
        sources = [panel["datasource"] for panel in PANELS]
        sources += [target["datasource"] for panel in PANELS for target in panel["targets"]]
        assert all(source == {"type": "prometheus", "uid": f"${{{variable['name']}}}"} for source in sources)
        assert DASHBOARD["id"] is None

    def test_every_panel_has_a_title_a_unit_and_its_own_place(self) -> None:
        places: set[tuple[int, int]] = set()
        for panel in DASHBOARD["panels"]:
            assert panel["title"]
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & places
            places |= cells
        assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS)
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        assert len(ids) == len(set(ids))

    def test_every_metric_is_on_the_dashboard_or_in_an_alert(self) -> None:
        asked = {one.name for text in EXPRESSIONS.values() for one in vector_selectors(promql_parser.parse(text))}
        for metric in (*API_METRICS, *WORKER_METRICS):
            assert any(name == metric.name or name.startswith(f"{metric.name}_") for name in asked), metric.name
