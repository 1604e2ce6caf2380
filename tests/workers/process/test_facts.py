"""The facts that a worker reports: complete, and without secrets."""

from __future__ import annotations

import os

import pytest

from service.config.settings import Settings
from service.contract.enums import SparkState
from service.store.workers import WorkerFacts
from workers.driver.session import SparkCondition
from workers.metrics import Resident
from workers.process.heartbeat import Facts, without_secrets


def facts(condition: SparkCondition) -> WorkerFacts:
    return Facts(Settings(), lambda: condition, lambda: Resident(process=3, jvm=4))()


def test_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_SPARK_MASTER", "spark://master:7077")
    monkeypatch.setenv("EVENKEEL_WORKER_CONCURRENCY", "7")
    monkeypatch.setenv("EVENKEEL_WORKER_QUEUES", "long")
    said = facts(SparkCondition(SparkState.READY, "an old fault", "app-1", 8))
    assert said.host
    assert said == WorkerFacts(
        host=said.host,
        pid=os.getpid(),
        concurrency=7,
        queues="long",
        cluster="spark://master:7077",
        app_id="app-1",
        spark_state="ready",
        spark_fault=None,
        slots=8,
        memory_bytes=7,
    )


def test_a_fault_while_spark_is_not_available() -> None:
    said = facts(SparkCondition(SparkState.UNAVAILABLE, "no master answers"))
    assert (said.spark_state, said.spark_fault, said.slots) == ("unavailable", "no master answers", None)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("local[2]", "local[2]"),
        ("spark://a:7077,b:7077", "spark://a:7077,b:7077"),
        ("k8s://https://user:secret@host:6443", "k8s://https://host:6443"),
        ("k8s://https://host:6443?token=secret", "k8s://https://host:6443"),
    ],
)
def test_no_secret(url: str, told: str) -> None:
    assert without_secrets(url) == told
