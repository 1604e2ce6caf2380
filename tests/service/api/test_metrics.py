"""GET /metrics: the metrics of the API, in the format of Prometheus."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from service import __version__
from service.monitoring.metrics import API_METRICS
from tests.support import lifecycle
from tests.support.api import Api


def scrape(api: Api) -> dict[str, float]:
    answer = api.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.mark.both_databases
def test_gauges_of_jobs_and_workers(api: Api) -> None:
    assert scrape(api)['evenkeel_oldest_queued_seconds{queue="short"}'] == 0
    lifecycle.insert(api.database)
    lifecycle.fail(api.database, lifecycle.claim(api.database, lifecycle.insert(api.database)))
    lifecycle.claim(api.database, lifecycle.insert(api.database), lease_ms=-1)
    lifecycle.beat(api.database)
    with api.database.write() as session:
        session.execute(text("UPDATE jobs SET submitted_at = submitted_at - 5000"))
    values = scrape(api)
    assert values['evenkeel_jobs{queue="short",status="QUEUED"}'] == 2
    assert values['evenkeel_jobs{queue="short",status="FAILED"}'] == 1
    assert values['evenkeel_jobs{queue="long",status="RUNNING"}'] == 0
    assert values['evenkeel_jobs_ended_recently{status="FAILED"}'] == 1
    assert values['evenkeel_jobs_ended_recently{status="SUCCEEDED"}'] == 0
    assert values["evenkeel_expired_leases"] == 1
    assert values["evenkeel_outbox_messages"] == 0
    assert values['evenkeel_workers{status="READY"}'] == 1
    assert values['evenkeel_workers{status="SILENT"}'] == 0
    assert values['evenkeel_oldest_queued_seconds{queue="short"}'] >= 5
    assert values[f'evenkeel_build_info{{version="{__version__}"}}'] == 1


def test_every_declared_metric_is_served_with_its_labels(api: Api) -> None:
    api.client.get("/healthz")
    families = {family.name: family for family in text_string_to_metric_families(api.client.get("/metrics").text)}
    for metric in API_METRICS:
        family = families[metric.name]
        assert (family.type, family.documentation) == (metric.type.value, metric.meaning)
        assert {frozenset(sample.labels) - {"le"} for sample in family.samples} == {frozenset(metric.labels)}
    served = {name for name in families if not name.endswith("_created")}
    assert served == {metric.name for metric in API_METRICS}


def test_explanations_do_not_count_as_queued_jobs(api: Api) -> None:
    lifecycle.insert(api.database, kind="explain")
    with api.database.write() as session:
        session.execute(text("UPDATE jobs SET submitted_at = submitted_at - 5000"))
    assert scrape(api)['evenkeel_oldest_queued_seconds{queue="short"}'] == 0


@pytest.mark.both_databases
def test_an_unavailable_database_is_reported(api: Api) -> None:
    assert scrape(api)["evenkeel_database_up"] == 1
    with api.database.write() as session:
        session.execute(text("DROP TABLE workers"))
    values = scrape(api)
    assert (values["evenkeel_database_up"], values["evenkeel_broker_up"]) == (0, 1)
    assert not any(name.startswith(("evenkeel_jobs", "evenkeel_workers")) for name in values)
    assert any(name.startswith("evenkeel_http") for name in values)


def test_an_unavailable_broker_is_reported(api: Api) -> None:
    (api.settings.broker_dir / "messages").rmdir()
    values = scrape(api)
    assert (values["evenkeel_database_up"], values["evenkeel_broker_up"]) == (1, 0)


def test_requests_are_counted_by_route_and_not_by_path(api: Api) -> None:
    for path in ("/v1/jobs/a", "/v1/jobs/b", "/nowhere/1", "/nowhere/2", "/healthz"):
        api.client.get(path)
    api.client.request("BREW", "/v1/jobs")
    for method in ("PUT", "PATCH"):
        api.client.request(method, "/nowhere")
    counts = {
        name: value for name, value in scrape(api).items() if name.startswith("evenkeel_http") and "_count" in name
    }
    labels = {re.sub(r"^[^{]*\{(.*)\}$", r"\1", name): value for name, value in counts.items()}
    assert labels['method="GET",route="/v1/jobs/{job_id}",status="404"'] == 2
    assert labels['method="GET",route="unmatched",status="404"'] == 2
    assert labels['method="GET",route="/healthz",status="200"'] == 1
    assert {label.split('"')[1] for label in labels} == {"GET", "PUT", "PATCH", "other"}
