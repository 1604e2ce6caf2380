"""Errors of a cluster that are found without Spark."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from service.config.spark import SparkSettings
from tests.support.processes import free_port
from workers.driver.cluster import SparkUnavailableError, reason_of, require_master


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def of(*ports: int) -> SparkSettings:
    masters = ",".join(f"127.0.0.1:{port}" for port in ports)
    return SparkSettings(master=f"spark://{masters}", connect_timeout_seconds=1)


def test_one_master_of_several_is_enough(listening: int) -> None:
    require_master(of(free_port(), listening))
    require_master(SparkSettings(master="yarn"))


def test_a_missing_master_is_reported_at_once_with_the_remedy() -> None:
    settings = of(free_port(), free_port())
    with pytest.raises(SparkUnavailableError) as caught:
        require_master(settings)
    (one, two) = settings.masters
    assert str(caught.value) == (
        f"cluster_unreachable: No Spark master answers at 127.0.0.1:{one[1]} (Connection refused), "
        f"127.0.0.1:{two[1]} (Connection refused). Start it, or correct EVENKEEL_SPARK_MASTER ({settings.master}); "
        "this worker tries again automatically."
    )


def test_an_unknown_host_name() -> None:
    with pytest.raises(SparkUnavailableError, match=r"no-such-host\.invalid:7077"):
        require_master(SparkSettings(master="spark://no-such-host.invalid:7077"))


def worker(**given: Any) -> dict[str, Any]:
    return {"state": "ALIVE", "memory": 1024, "cores": 2, "memoryfree": 1024, "coresfree": 2, **given}


@pytest.mark.parametrize(
    ("workers", "expected", "is_busy"),
    [
        ([], "has no Spark worker", False),
        ([worker(state="DEAD")], "has no Spark worker", False),
        (
            [worker(cores=1)],
            "needs 1024 MiB and 2 cores, and no Spark worker has more than 1024 MiB and 1",
            False,
        ),
        ([worker(memory=512)], "Reduce EVENKEEL_SPARK_EXECUTOR_MEMORY or EVENKEEL_SPARK_EXECUTOR_CORES", False),
        ([worker(coresfree=0), worker(memoryfree=0)], "set EVENKEEL_SPARK_CORES_MAX on each", True),
        ([worker()], "Set EVENKEEL_SPARK_DRIVER_HOST", False),
    ],
)
def test_why_no_executor_comes(workers: list[dict[str, Any]], expected: str, is_busy: bool) -> None:
    settings = SparkSettings(master="spark://127.0.0.1:7077", executor_cores=2)
    reason, busy = reason_of(settings, workers)
    assert expected in reason
    assert busy == is_busy
