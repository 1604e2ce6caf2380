"""Tests of a service's processes: none is left behind, and two services do not affect each other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from service.cli.preparation import listen
from service.config.settings import Settings
from tests.support.processes import end, family, start_python, wait_for, wait_until_gone
from tests.support.service import ENVIRONMENT, Service, running_service
from tests.support.tables import ENDLESS, parquet, write_endless, write_orders

pytestmark = pytest.mark.e2e

COUNT = {"tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}


def start_job(service: Service) -> dict[int, str]:
    """Runs an endless job, so that a JVM is busy, and returns all processes of the service."""
    write_endless(service.data)
    service.wait(service.submit(ENDLESS), "RUNNING")
    processes = family(service.process.pid)
    assert any("java" in name for name in processes.values()), processes
    assert len(processes) >= 4, processes
    return processes


@pytest.mark.slow
def test_interrupted_service_leaves_nothing(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        processes = start_job(service)
        os.kill(service.process.pid, signal.SIGINT)
        assert service.process.wait(45) == 0, service.logs()
        wait_until_gone(list(processes), 15)
        assert service.output.read_text().endswith("Stopped.\n")


def test_second_signal_kills_at_once(tmp_path: Path) -> None:
    # A drain time that a single signal would wait for.
    with running_service(tmp_path, {"EVENKEEL_WORKER_DRAIN_SECONDS": "300"}) as service:
        processes = start_job(service)
        os.kill(service.process.pid, signal.SIGINT)
        wait_for("the notice", lambda: "Press Ctrl-C again" in service.output.read_text())
        os.kill(service.process.pid, signal.SIGINT)
        assert service.process.wait(60) == 0
        wait_until_gone(list(processes), 15)


@pytest.mark.withstands(
    "the API of `evenkeel up` dies",
    how="`kill -9`",
    times=1,
    guaranteed="it is restarted at the same address",
)
@pytest.mark.slow
def test_dead_api_is_restarted_at_the_same_address(tmp_path: Path) -> None:
    with running_service(tmp_path, {"EVENKEEL_SPARK_WARM_UP": "false"}) as service:
        (api,) = (pid for pid in family(service.process.pid) if "serve" in command_line(pid))
        os.kill(api, signal.SIGKILL)
        assert httpx.get(f"{service.address}/healthz", timeout=30, trust_env=False).status_code == 200
        assert "The api ended (SIGKILL)" in service.output.read_text()
        # SIGTERM, which service managers send, has the effect of Ctrl-C.
        processes = family(service.process.pid)
        os.kill(service.process.pid, signal.SIGTERM)
        assert service.process.wait(45) == 0, service.logs()
        wait_until_gone(list(processes), 15)


@pytest.mark.withstands(
    "`evenkeel up` dies",
    how="`kill -9`, next to another instance",
    times=1,
    guaranteed="all its processes exit; the other instance is not affected",
)
@pytest.mark.slow
@pytest.mark.full
def test_killed_service_leaves_nothing_and_does_not_affect_another(service: Service, tmp_path: Path) -> None:
    with running_service(tmp_path) as other:
        write_orders(other.data)
        assert other.address != service.address
        first, second = service.submit(COUNT), other.submit(COUNT)
        for running, job_id, foreign in ((service, first, second), (other, second, first)):
            assert running.wait(job_id)["status"] == "SUCCEEDED"
            assert running.rows(job_id) == [{"n": 10_000}]
            assert running.http.get(f"/v1/jobs/{foreign}").status_code == 404
        processes = family(other.process.pid)
        assert any("java" in name for name in processes.values()), processes
        other.process.kill()
        other.process.wait(10)
        wait_until_gone(list(processes), 15)
    assert service.http.get("/healthz").status_code == 200


def test_busy_port_is_reported_before_anything_starts(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    with listen(Settings(), 0) as busy:
        port = busy.getsockname()[1]
        process = start_python(
            ["-m", "service.cli", "up", "--port", str(port)],
            environment={"EVENKEEL_STATE_DIR": str(tmp_path / "state")},
            log=log,
            cwd=tmp_path,
        )
        assert process.wait(30) == 3
    assert log.read_text().splitlines()[0] == f"evenkeel: port {port} on 127.0.0.1 is in use"
    assert not (tmp_path / "state").exists()


def test_failed_start_of_a_worker_shows_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    # Every Python process runs this at start, but only the worker fails.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'workers' in sys.orig_argv:\n    print('out of luck', flush=True)\n    os._exit(7)\n"
    )
    process = start_python(
        ["-m", "service.cli", "up", "--port", "0"],
        environment={
            **ENVIRONMENT,
            "EVENKEEL_STATE_DIR": str(tmp_path / "state"),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        },
        log=log,
        cwd=tmp_path,
    )
    try:
        assert process.wait(60) == 4
    except subprocess.TimeoutExpired:
        end(process)
        raise
    said = log.read_text()
    assert "ended during its start" in said
    assert "out of luck" in said
    assert "evenkeel doctor" in said


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
