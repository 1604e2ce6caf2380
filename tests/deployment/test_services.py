"""Every service of docker-compose.yml, by its own command, variables and health check, and a job through all of them.

Docker itself is not there: see `tests.support.compose_stack` for what stands for it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.client import JobClient
from tests.support.compose_stack import ComposeStack
from tests.support.processes import wait_for
from tests.support.tables import write_orders

pytestmark = pytest.mark.e2e

# Whatever a URL, a shell, a configuration file and SQL would each read otherwise.
PASSWORDS = {
    "EVENKEEL_DATABASE_PASSWORD": "p@ss:w/rd#1 %25'\"\\$x",
    "EVENKEEL_BROKER_PASSWORD": "r%40 é:/?#[]@!$&'()*+,;=\"\\",
}
# One executor of the least size.
SMALL = {
    "EVENKEEL_SPARK_CORES_MAX": "1",
    "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
    "EVENKEEL_SPARK_WORKER_CORES": "1",
    "EVENKEEL_SPARK_WORKER_MEMORY": "512m",
}
PROXY = "jobs.example.org"
ORDER = ("postgres", "redis", "migrate", "spark-master", "spark-worker", "worker", "api")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[ComposeStack]:
    data = tmp_path / "tables"
    data.mkdir()
    write_orders(data)
    running = ComposeStack(
        tmp_path, {**PASSWORDS, **SMALL, "EVENKEEL_DATA_DIR": str(data), "EVENKEEL_API_HOST_NAMES": PROXY}
    )
    try:
        yield running
    finally:
        running.close()


@pytest.mark.slow
def test_the_services_run_a_job_and_stop_when_told(stack: ComposeStack) -> None:
    assert set(ORDER) == set(stack.services)
    for name in set(ORDER) - {"migrate"}:
        code, said = stack.check(name)
        assert code != 0, f"the health check of {name} is content although nothing runs: {said}"
    for name in ("postgres", "redis", "spark-master"):
        stack.start(name)
    stack.wait_until_healthy("postgres")
    stack.start("migrate")
    assert stack.wait_for_end("migrate") == 0, stack.log("migrate")
    stack.wait_until_healthy("redis")
    stack.wait_until_healthy("spark-master")
    for name in ("spark-worker", "worker", "api"):
        stack.start(name)
    for name in ("spark-worker", "worker", "api"):
        stack.wait_until_healthy(name)

    address = f"http://127.0.0.1:{stack.ports['api', 8080]}"
    assert httpx.get(f"{address}/v1/jobs").status_code == 401
    # Whoever starts it finds the first key there, once.
    (key,) = re.findall(r"\bek_\S+", stack.log("api"))
    client = JobClient(address, key)
    with client.http:
        _, rows = client.run(
            {
                "tables": {"o": {"format": "parquet", "path": "orders/"}},
                "sql": "SELECT category, COUNT(*) AS n, COUNT(DISTINCT uid) AS users FROM o "
                "GROUP BY category ORDER BY category",
            }
        )
        # The job may end before the heartbeat that tells of a Spark that is ready.
        master = f"spark://127.0.0.1:{stack.ports['spark-master', 7077]}"
        wait_for("a worker that is ready", lambda: workers_of(client) == [(master, "READY")])
        # By the names of Prometheus and of a proxy; the health check above has asked by the address.
        named = {host: client.http.get("/metrics", headers={"Host": host}) for host in ("api:8080", PROXY, "elsewhere")}
    assert {host: answer.status_code for host, answer in named.items()} == {
        "api:8080": 200,
        PROXY: 200,
        "elsewhere": 421,
    }
    served = httpx.get(f"http://127.0.0.1:{stack.ports['worker', 9100]}/metrics").raise_for_status().text
    assert "evenkeel_worker_spark_starts_total 1.0" in served
    assert "Rolling executor logs enabled for" in stack.log("spark-worker")
    assert [(row["category"], row["n"]) for row in rows] == [(f"c{i}", len(range(i, 10_000, 7))) for i in range(7)]
    assert all(row["users"] == 100 for row in rows), rows

    told = [line for process in stack.processes.values() for line in command_lines(process.pid)]
    assert [line for line in told for password in PASSWORDS.values() if password in line] == []

    # As `docker compose stop` does: whoever depends on another first. A JVM gives 143 for SIGTERM.
    codes = {name: stack.stop(name) for name in ("api", "worker", "spark-worker", "spark-master", "redis")}
    assert codes == {
        "api": codes["api"] if codes["api"] in (0, -signal.SIGTERM) else 0,
        "worker": 0,
        "spark-worker": 128 + signal.SIGTERM,
        "spark-master": 128 + signal.SIGTERM,
        "redis": 0,
    }


def workers_of(client: JobClient) -> list[tuple[str, str]]:
    """Cluster and status of every worker."""
    return [(worker["cluster"], worker["status"]) for worker in client.http.get("/v1/workers").json()["workers"]]


def command_lines(pid: int) -> list[str]:
    """Of a process and all below it, as anybody on the machine may read them."""
    found = []
    for process in (root := psutil.Process(pid), *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # ended meanwhile
            found.append(" ".join(process.cmdline()))
    return found
