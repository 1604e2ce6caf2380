"""The Python client that openapi-python-client makes of openapi.yaml, against the running service."""

from __future__ import annotations

import io
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.clients.generated import PACKAGE, ROOT
from tests.clients.provoked import LAST, LATE, idle_service, provocations, situation_of
from tests.clients.specification import documented, operations
from tests.support.production import Production
from tests.support.tables import parquet

if TYPE_CHECKING:
    from tests.clients.python.situations import Situation

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USAGE = Path(__file__).parent / "python"
NOT_PROVOKED: dict[str, str] = {}
"""Documented codes that no test here can provoke over HTTP, and why."""

MANUFACTURERS = {
    "name": "manufacturers",
    "tables": {"f": parquet("flights"), "p": parquet("planes")},
    "sql": "SELECT p.manufacturer, COUNT(*) AS flights, COUNT(DISTINCT f.tailnum) AS planes FROM f "
    "JOIN p ON f.tailnum = p.tailnum GROUP BY p.manufacturer ORDER BY flights DESC",
    "settings": {"table.optimizer.agg-phase-strategy": "TWO_PHASE"},
}
FIRST = [["BOEING", 82912, 1630], ["EMBRAER", 66068, 299], ["AIRBUS", 47302, 336]]
ROWS = 35


def test_client_has_every_operation(python_client: Path) -> None:
    package = import_module(PACKAGE)
    modules = [module.name for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")]
    for module in modules:
        import_module(module)
    assert {module.rpartition(".")[2] for module in modules if module.count(".") == 3} == set(operations())


def test_client_and_its_use_are_typed(python_client: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", f"--cache-dir={tmp_path}"),
            *("--config-file=", str(python_client / PACKAGE), str(USAGE)),
        ],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{ROOT}{os.pathsep}{python_client}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_program_from_job_to_result(python_client: Path, production: Production) -> None:
    from tests.clients.python import journey

    (api,) = production.apis
    client = journey.client_of(api.address, production.key())
    job = journey.submit(client, MANUFACTURERS, "manufacturers-1")
    assert journey.submit(client, MANUFACTURERS, "manufacturers-1").id == job.id
    ended = journey.wait_for(client, job.id)
    assert (ended.status, ended.finished) == ("SUCCEEDED", True)
    pages = list(journey.rows_of(client, job.id, page_size=10))
    assert [len(page) for page in pages] == [10, 10, 10, 5]
    rows = [row for page in pages for row in page]
    assert rows[:3] == FIRST
    as_csv = journey.download(client, job.id, journey.CSV).decode()
    assert as_csv.splitlines()[:2] == ['"manufacturer","flights","planes"', '"BOEING",82912,1630']
    table = pa.ipc.open_stream(journey.download(client, job.id, journey.ARROW)).read_all()
    assert [list(row.values()) for row in table.to_pylist()] == rows
    events = journey.events_of(client, job.id, after=0)
    assert events[0] == events[-1] == "status"
    assert journey.events_of(client, job.id, after=1) == events[1:]
    plan, metrics = journey.reports_of(client, job.id)
    assert {trace.rule: trace.outcome for trace in plan.rules}["two_phase_aggregate"] == "fired"
    assert metrics.result_rows == ROWS
    assert metrics.skew.advice
    assert [node.operator for node in journey.explanation(client, MANUFACTURERS).before.nodes][:2] == ["Scan", "Scan"]
    from evenkeel_client.models import JobStatus

    assert "manufacturers" in journey.names_of_jobs(client, JobStatus.SUCCEEDED)


def test_program_posts_rows(python_client: Path, production: Production) -> None:
    from tests.clients.python import journey

    (api,) = production.apis
    client = journey.client_of(api.address, production.key(tenant="posting"))
    assert journey.declare(client, "clicks", "uid BIGINT, page STRING").rows == 0
    from evenkeel_client.types import File

    rows = b'{"uid": 1, "page": "/"}\n{"uid": 2, "page": "/cart"}\n'
    posted = [journey.append(client, "clicks", "sensor-7/000042", File(io.BytesIO(rows))) for _ in range(2)]
    assert [(each.rows, each.replayed) for each in posted] == [(2, False), (2, True)]
    assert journey.posted_rows(client, "clicks") == 2


def test_program_administers_the_service(python_client: Path, production: Production) -> None:
    from tests.clients.python import journey

    (api,) = production.apis
    client = journey.client_of(api.address, production.key(tenant="operators"))
    me = journey.who(client)
    assert (me.tenant, sorted(me.scopes)) == ("operators", ["admin", "metrics", "read", "submit"])
    assert journey.key_that_lives_and_ends(client) == [True, False, True]
    alive, ready, workers, metrics = journey.state_of_the_service(client)
    assert (alive, ready, workers) == ("alive", "ready", 1)
    assert "evenkeel_jobs" in metrics


@pytest.fixture(scope="module")
def idle(python_client: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Situation]:
    """Of a service without a worker."""
    with idle_service(tmp_path_factory.mktemp("idle")) as running:
        yield situation_of(running)


@pytest.fixture(scope="module")
def busy(python_client: Path, production: Production) -> Situation:
    """Of a service with a worker."""
    return situation_of(production)


def test_every_documented_problem_is_provoked(python_client: Path) -> None:
    assert {*EARLY, *LATE}.isdisjoint(NOT_PROVOKED)
    assert {*EARLY, *LATE, *NOT_PROVOKED} == documented()
    assert set(provocations()) == {*EARLY, *LATE}


EARLY = sorted(documented().difference(LATE, LAST, NOT_PROVOKED))
EARLY += LAST


@pytest.mark.parametrize("code", EARLY)
def test_problems_are_typed(code: str, idle: Situation) -> None:
    check(code, provocations()[code](idle))


@pytest.mark.parametrize("code", LATE)
def test_problems_of_a_finished_job_are_typed(code: str, busy: Situation) -> None:
    check(code, provocations()[code](busy))


def check(code: str, answer: object) -> None:
    from evenkeel_client.models import Problem

    assert isinstance(answer, Problem), answer
    assert (answer.code, answer.type_) == (code, f"/problems/{code}")
    assert answer.detail
    assert answer.title
