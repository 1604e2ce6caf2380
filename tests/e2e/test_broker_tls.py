"""Test of API and worker with a Redis behind TLS that requires a password."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tests.support.processes import wait_for
from tests.support.production import Servers, running_production
from tests.support.servers import running_postgres, running_redis
from tests.support.tables import parquet, write_orders
from tests.support.tls import behind_tls, server_context, write_ca

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PASSWORD = "geheim-8d1f"
JOB = {"tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}


@pytest.mark.withstands(
    "an impostor of Redis in production",
    kind="attack",
    how="API and worker are started with a Redis whose TLS certificate is for another host, then of another CA, then "
    "right",
    times=2,
    guaranteed="both log the reason and send nothing; jobs are accepted and wait, and run without a restart once the "
    "right server is back; no log contains the password",
)
def test_job_waits_for_the_right_tls_certificate(tmp_path: Path) -> None:
    ca = trustme.CA()
    environment = {
        "EVENKEEL_BROKER_TLS_CA_FILE": str(write_ca(ca, tmp_path / "ca.pem")),
        "EVENKEEL_BROKER_PASSWORD": PASSWORD,
        # Long enough that messages come only from the API.
        "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "600",
    }
    with (
        running_postgres(tmp_path) as postgres,
        running_redis(tmp_path, PASSWORD) as redis,
        behind_tls(redis.port, ca.issue_cert("elsewhere.example")) as front,
        running_production(
            tmp_path,
            Servers(postgres, redis),
            apis=1,
            workers=0,
            environment={**environment, "EVENKEEL_BROKER_URL": f"rediss://localhost:{front.port}/0"},
        ) as production,
    ):
        write_orders(production.data)
        (api,) = production.apis
        message = f"The certificate of the Redis at localhost:{front.port} is for a different host name."
        assert f"evenkeel: {message}" in api.part.said()
        assert message in broker_issue(api.http.get("/readyz").json())
        waiting = api.submit(JOB)
        worker = production.start_worker()
        wait_for("the worker's log message", lambda: message in worker.said() and "VERIFY_FAILED" in worker.said(), 120)
        front.context = server_context(trustme.CA().issue_cert("localhost"))
        assert "was not issued by a trusted CA" in broker_issue(api.http.get("/readyz").json())
        assert api.job(waiting)["status"] == "QUEUED"
        assert front.heard == b""

        front.context = server_context(ca.issue_cert("localhost"))
        production.wait_for_workers()
        assert api.wait(waiting)["status"] == "SUCCEEDED"
        job_id, rows = api.run(JOB)
        assert rows == [{"n": 10_000}]
        assert job_id.encode() in front.heard
        assert "broker" not in api.http.get("/readyz").text
        told_anywhere = [path.name for path in tmp_path.rglob("*.log") if PASSWORD in path.read_text(errors="replace")]
    assert PASSWORD.encode() in front.heard
    assert told_anywhere == []


def broker_issue(problem: dict[str, list[dict[str, str]]]) -> str:
    """Returns what the readiness problem says about the broker."""
    return next(issue["detail"] for issue in problem["errors"] if issue["code"] == "broker")
