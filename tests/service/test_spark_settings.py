"""What a Spark master, its executors and their memory may be, and what contradicts what."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.spark_settings import SparkSettings

CLUSTER = "spark://10.0.0.1:7077"


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[2,3]",
        CLUSTER,
        "spark://one:7077,two:7078",
        "spark://[::1]:7077",
        "yarn",
        "k8s://https://10.0.0.1:6443",
        "k8s://kubernetes.default.svc",
    ],
)
def test_masters_that_spark_knows(master: str) -> None:
    assert SparkSettings(master=master).master == master


@pytest.mark.parametrize(
    "master",
    ["local[0]", "local-cluster[2,1,1024]", "spark://host", "spark://a:1,b", "mesos://h:5050", "10.0.0.1:7077", "YARN"],
)
def test_another_master_is_refused_with_those_that_exist(master: str) -> None:
    with pytest.raises(ValidationError, match=r"use local\[\*\].*spark://HOST:7077.*yarn or k8s://"):
        SparkSettings(master=master)


def test_masters_are_told_apart() -> None:
    assert SparkSettings(master="spark://one:7077,[::1]:7078").masters == (("one", 7077), ("::1", 7078))
    assert SparkSettings(master="yarn").masters == ()
    assert (SparkSettings().is_local, SparkSettings(master=CLUSTER).is_standalone) == (True, True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"executor_memory": "2g"}, "leave out EVENKEEL_SPARK_EXECUTOR_MEMORY, or name a cluster"),
        ({"cores_max": 2, "driver_host": "h"}, "EVENKEEL_SPARK_CORES_MAX, EVENKEEL_SPARK_DRIVER_HOST"),
        ({"master": CLUSTER, "executors": 2}, "set EVENKEEL_SPARK_CORES_MAX and EVENKEEL_SPARK_EXECUTOR_CORES"),
        ({"master": "yarn", "cores_max": 2}, "set EVENKEEL_SPARK_EXECUTORS"),
        ({"master": "yarn", "max_executors": 2}, "need EVENKEEL_SPARK_DYNAMIC_ALLOCATION=true"),
        ({"master": "yarn", "executors": 2, "dynamic_allocation": True}, "MIN_EXECUTORS"),
        ({"master": "yarn", "min_executors": 3, "max_executors": 2, "dynamic_allocation": True}, "more than"),
        ({"master": CLUSTER, "executor_cores": 3, "cores_max": 2}, "no executor would ever start"),
        ({"driver_memory": "449m"}, "512m or more"),
        ({"master": CLUSTER, "executor_memory": "256m"}, "does not start with less than 450 MiB"),
    ],
)
def test_contradictions_are_refused_with_what_to_set(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        SparkSettings(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"master": CLUSTER, "executor_cores": 2, "cores_max": 4, "executor_memory": "450m"},
        {"master": "yarn", "executors": 4, "executor_cores": 2},
        {"master": "yarn", "dynamic_allocation": True, "min_executors": 0, "max_executors": 8},
    ],
)
def test_what_fits_together(given: dict[str, Any]) -> None:
    assert SparkSettings(**given).master == given["master"]
