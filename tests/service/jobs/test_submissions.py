"""Large submissions over HTTP: accepted or refused by a named limit, and no other request waits for them."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from service.api.app import create_app
from service.config.settings import Settings
from service.contract.query import CODE
from service.jobs import check_job
from service.sql.compile import compile_job
from service.store.session import Database
from tests.support.processes import end, start_python, wait_for
from tests.support.shapes import ACCEPTED, MANY_JOINS, REFUSED, sql

pytestmark = pytest.mark.one_database

TABLES = {name: {"format": "parquet", "path": "t.parquet"} for name in ("t", "u", "w")}
SMALL = {"tables": TABLES, **sql("SELECT a FROM t")}
PATIENCE_SECONDS = 20
"""Far more than any request takes on a busy machine."""
AT_ONCE = 50
"""More than the threads of the framework (40) and of the event loop together."""


DEEP = [name for name in ACCEPTED if " deep" in name]
"""What recursion takes the most of a thread's stack for."""


@pytest.fixture
def client(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    # No worker is there to explain anything.
    monkeypatch.setenv("EVENKEEL_API_EXPLAIN_TIMEOUT_SECONDS", "0.2")
    columns = {"a": pa.int64(), "b": pa.int32(), "s": pa.string(), "ok": pa.bool_()}
    empty = pa.table({name: pa.array([], kind) for name, kind in columns.items()})
    pq.write_table(empty, settings.data_roots[0] / "t.parquet")
    with TestClient(create_app(Settings()), base_url="http://127.0.0.1:8080") as client:
        yield client


@pytest.mark.not_quick
def test_a_large_query_is_accepted(client: TestClient, subtests: pytest.Subtests) -> None:
    """tests/service/contract/test_limits.py compiles all; here are those that a request could fail by itself."""
    shapes = {**ACCEPTED, **MANY_JOINS}
    for shape in (*DEEP, "structure: 1,024 columns", "100 joins"):
        with subtests.test(shape=shape):
            answer = client.post("/v1/jobs", json={"tables": TABLES, **shapes[shape]})
            assert answer.status_code == 202, answer.text


@pytest.mark.not_quick
def test_a_query_beyond_a_limit_is_refused(client: TestClient, subtests: pytest.Subtests) -> None:
    for shape, (limit, found, part) in REFUSED.items():
        with subtests.test(shape=shape):
            answer = client.post("/v1/jobs", json={"tables": TABLES, **part})
            assert answer.status_code == 422, answer.text
            problem = answer.json()
            assert problem["code"] == CODE
            (issue,) = problem["errors"]
            assert f"has {found} " in issue["detail"]
            assert f"(limit `{limit}`). " in issue["detail"]
            assert issue["pointer"].startswith("/sql" if "sql" in part else "/query")


def test_an_unknown_mode_is_refused(client: TestClient, subtests: pytest.Subtests) -> None:
    modes: tuple[object, ...] = ("now and then", "BATCH", "", 3, 1.5, True, None, [], {"batch": True})
    for mode in modes:
        for path in ("/v1/jobs", "/v1/explain", "/v1/profiles"):
            with subtests.test(mode=mode, path=path):
                answer = client.post(path, json={**SMALL, "mode": mode})
                assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
                assert "/mode" in {issue["pointer"] for issue in answer.json()["errors"]}


def test_a_structure_without_end_is_refused_as_json(client: TestClient) -> None:
    query: dict[str, Any] = {"source": {"kind": "table", "table": "t"}}
    for _ in range(200):
        query = {"source": {"kind": "query", "alias": "d", "query": query}}
    answer = client.post("/v1/jobs", json={"tables": TABLES, "query": query})
    assert (answer.status_code, answer.json()["code"]) == (422, "nesting_too_deep")
    assert "64" in answer.json()["detail"]


@pytest.mark.not_quick
@pytest.mark.withstands(
    "more slow submissions than the API has threads",
    kind="attack",
    how="60 submissions and explanations whose queries are compiled only after reads have been served",
    times=60,
    guaranteed="health checks, jobs and lists are served meanwhile, and all submissions afterwards",
)
def test_submissions_keep_no_thread_from_reads(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = client.post("/v1/jobs", json=SMALL).json()["id"]
    reached, gate = threading.Semaphore(0), threading.Event()

    def held(*arguments: Any, **named: Any) -> Any:
        reached.release()
        assert gate.wait(3 * PATIENCE_SECONDS)
        return compile_job(*arguments, **named)

    monkeypatch.setattr(check_job, "compile_job", held)
    paths = ["/v1/jobs"] * AT_ONCE + ["/v1/explain"] * 10
    with ThreadPoolExecutor(len(paths) + 4) as pool:
        posts = [pool.submit(client.post, path, json=SMALL) for path in paths]
        try:
            assert reached.acquire(timeout=PATIENCE_SECONDS)
            # Until those behind it have come as far as they can.
            time.sleep(0.5)
            reads = [pool.submit(client.get, path) for path in ("/healthz", f"/v1/jobs/{job_id}", "/v1/jobs")]
            reads.append(pool.submit(client.post, f"/v1/jobs/{job_id}/cancel"))
            assert [read.result(PATIENCE_SECONDS).status_code for read in reads] == [200, 200, 200, 202]
        finally:
            gate.set()
        assert {post.result(3 * PATIENCE_SECONDS).status_code for post in posts[:AT_ONCE]} == {202}


HANGING = """
import threading
from service.cli.start import serve
from service.data import table_resolution

def hang(*arguments, **named):
    print("The listing hangs", flush=True)
    threading.Event().wait()

table_resolution.find_table_files = hang
serve(port=0)
"""


@pytest.mark.not_quick
@pytest.mark.withstands(
    "a directory whose listing hangs while the API stops",
    kind="fault",
    how="SIGTERM to `evenkeel serve` while a submission lists a directory and does not return",
    times=1,
    guaranteed="the submission gets 503, and the API exits",
)
def test_a_submission_that_hangs_does_not_keep_the_api_from_ending(
    tmp_path: Path, state_dir: Path, sqlite_database: Database
) -> None:
    environment = {"EVENKEEL_STATE_DIR": str(state_dir)}
    log = tmp_path / "api.log"
    api = start_python(["-c", HANGING], environment=environment, log=log, cwd=tmp_path)
    try:
        listens = re.compile(r"Evenkeel listens on (http://\S+)")
        address = wait_for("the API's address", lambda: listens.search(log.read_text()), 60).group(1)

        def post() -> httpx.Response:
            transport = httpx.HTTPTransport(retries=20)
            with httpx.Client(transport=transport, trust_env=False) as client:
                return client.post(f"{address}/v1/jobs", json=SMALL, timeout=60)

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(post)
            wait_for("the listing", lambda: "The listing hangs" in log.read_text(), 60)
            # uvicorn ends in good order, then by the signal that asked for it.
            assert end(api, 30) in (0, -signal.SIGTERM), log.read_text()
            assert answer.result(10).status_code == 503
    finally:
        end(api, 0)


@pytest.mark.not_quick
def test_polls_go_on_while_the_largest_queries_are_compiled(client: TestClient) -> None:
    job_id = client.post("/v1/jobs", json=SMALL).json()["id"]
    bodies = [{"tables": TABLES, **ACCEPTED[shape]} for shape in ("OR of 4,900", "OR of ANDs", "IN of 9,900 texts")]
    with ThreadPoolExecutor(6) as pool, _polling(client, f"/v1/jobs/{job_id}") as waits:
        answers = [pool.submit(client.post, "/v1/jobs", json=body) for body in bodies]
        assert [answer.result(3 * PATIENCE_SECONDS).status_code for answer in answers] == [202] * 3
    assert len(waits) > len(bodies)
    assert max(waits) < PATIENCE_SECONDS


@contextmanager
def _polling(client: TestClient, path: str) -> Iterator[list[float]]:
    """Asks for `/healthz` and for `path` in turn; the seconds that each answer took."""
    waits: list[float] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            for each in ("/healthz", path):
                asked = time.monotonic()
                assert client.get(each).status_code == 200
                waits.append(time.monotonic() - asked)

    with ThreadPoolExecutor(1) as pool:
        polls = pool.submit(poll)
        try:
            yield waits
        finally:
            done.set()
            polls.result(PATIENCE_SECONDS)
