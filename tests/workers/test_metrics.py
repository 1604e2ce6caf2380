"""What a worker counts is what it declares."""

from __future__ import annotations

import httpx
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.contract.enums import JobStatus
from service.monitoring.metrics import WORKER_METRICS
from service.store.attempts import Claim
from tests.support.processes import free_port
from workers.metrics import DriverCount, Resident, WorkerMetrics, resident

FIRST = Claim("job-1", "default", "run", "a job", {}, 1, "w1", 3_500, 3_500, 60_000, "long", 1_000)
EXPLAIN = Claim("job-2", "default", "explain", "a job", {}, 1, "w1", 3_500, 3_500, 60_000, "short", 1_000)


def scraped(metrics: WorkerMetrics) -> dict[tuple[str, ...], float]:
    """Every sample but those of the library's own making, by name and label values in the order of the label names."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def used() -> WorkerMetrics:
    metrics = WorkerMetrics()
    metrics.watch(lambda: 3, lambda: Resident(process=10, jvm=20, isolated=30))
    metrics.claimed(FIRST)
    metrics.planned(250)
    metrics.executed(1_500)
    metrics.ended(FIRST, JobStatus.SUCCEEDED)
    metrics.handed_back("driver_lost")
    metrics.lease_lost()
    metrics.spark_started()
    metrics.spark_lost()
    metrics.mini_batch(750)
    return metrics


def test_everything_declared_is_served_and_nothing_else() -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(used().registry).decode())
        if not family.name.endswith("_created")
    }
    assert set(families) == {metric.name.removesuffix("_total") for metric in WORKER_METRICS}
    for metric in WORKER_METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.type.value, metric.meaning)
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels == set(metric.labels), metric.name


def test_what_happened_is_counted() -> None:
    values = scraped(used())
    assert values["evenkeel_worker_jobs_ended_total", "long", "SUCCEEDED"] == 1
    assert values["evenkeel_worker_queue_wait_seconds_sum", "long"] == 2.5
    assert values[("evenkeel_worker_planning_seconds_sum",)] == 0.25
    assert values[("evenkeel_worker_execution_seconds_sum",)] == 1.5
    assert values["evenkeel_worker_attempts_handed_back_total", "driver_lost"] == 1
    assert values[("evenkeel_worker_leases_lost_total",)] == 1
    assert values[("evenkeel_worker_running_attempts",)] == 3
    assert values["evenkeel_worker_memory_bytes", "process"] == 10
    assert values["evenkeel_worker_memory_bytes", "jvm"] == 20
    assert values["evenkeel_worker_memory_bytes", "isolated"] == 30
    assert values[("evenkeel_worker_mini_batch_seconds_sum",)] == 0.75


def test_explanations_and_later_attempts_are_no_jobs_that_waited() -> None:
    metrics = WorkerMetrics()
    metrics.claimed(EXPLAIN)
    metrics.ended(EXPLAIN, JobStatus.SUCCEEDED)
    metrics.claimed(Claim("job-1", "default", "run", "a job", {}, 2, "w1", 9_000, 3_500, 60_000, "long", 1_000))
    assert not any("jobs_ended" in name or "queue_wait" in name for name, *_ in scraped(metrics))


def test_streams_are_behind_together_for_as_long_as_they_are_there() -> None:
    class Behind:
        waiting_bytes = 10
        oldest_waiting_seconds = 2.5

    metrics = WorkerMetrics()
    first, second = Behind(), Behind()
    metrics.watch_stream(first)
    metrics.watch_stream(second)
    second.oldest_waiting_seconds = 5.0
    values = scraped(metrics)
    assert values[("evenkeel_worker_stream_waiting_bytes",)] == 20
    assert values[("evenkeel_worker_stream_oldest_waiting_seconds",)] == 5.0
    del first, second
    assert scraped(metrics)[("evenkeel_worker_stream_oldest_waiting_seconds",)] == 0


def test_drivers_are_counted_as_they_come_and_go() -> None:
    class Runtime:
        current: object | None = None

    runtime, metrics = Runtime(), WorkerMetrics()
    count = DriverCount(runtime, metrics)
    for driver in (None, "one", "one", "two", None):
        runtime.current = driver
        count.step()
    values = scraped(metrics)
    assert values[("evenkeel_worker_spark_starts_total",)] == 2
    assert values[("evenkeel_worker_spark_losses_total",)] == 2


def test_it_is_served_where_it_should_be_and_a_taken_port_ends_no_worker() -> None:
    metrics, port = used(), free_port()
    server = metrics.serve("127.0.0.1", port)
    assert server is not None
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=10)
        assert "evenkeel_worker_running_attempts 3.0" in answer.text
        assert WorkerMetrics().serve("127.0.0.1", port) is None
    finally:
        server.shutdown()
        server.server_close()


def test_memory_of_processes_that_are_there() -> None:
    own = resident(None)
    assert own.process > 1_000_000
    assert own.jvm == 0
    assert own.total == own.process
    assert resident(2**22 + 1).jvm == 0, "no process has this number"
