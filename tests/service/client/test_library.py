"""`import evenkeel as ek`: jobs, results and errors of the blocking client, against the real application."""

from __future__ import annotations

import _thread
import math
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pyarrow as pa
import pytest
from sqlalchemy import func, select

from service.client import errors
from service.client.client import Client, Job, Result, connect
from service.contract.enums import JobStatus, KeyScope
from service.contract.problems import Problem
from service.contract.reports import HotKey, HotKeyReport
from service.keys.administration import KeyRequest, issue_key
from service.store.publication import Ending
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.processes import free_port
from tests.support.scripted import Script, answers, breaks_off, breaks_off_amid_the_body, scripted
from tests.support.served import Served

SQL = "SELECT o.uid, COUNT(*) AS orders FROM o WHERE o.uid > :least GROUP BY o.uid"
TABLES = {"o": "orders.parquet"}
HOSTILE = "it's <b>\"; DROP TABLE o --\\' \u202e"
ROWS = pa.table(
    {
        "i": pa.array([1, None, 3], pa.int64()),
        "d": pa.array([Decimal("12345678901234567.89"), None, Decimal("-0.01")], pa.decimal128(19, 2)),
        "t": pa.array([datetime(2024, 1, 31, 12, 0, 0, 5, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        "n": pa.array([datetime(2024, 1, 31, 12), None, None], pa.timestamp("us")),  # noqa: DTZ001 - a TIMESTAMP_NTZ
        "day": pa.array([date(2024, 1, 31), None, date(1, 1, 1)]),
        "s": pa.array([HOSTILE, None, ""]),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "st": pa.array([{"x": 1, "y": "z"}, None, {"x": None, "y": None}]),
        "b": pa.array([b"\x00\xff", None, b""]),
        "f": pa.array([math.inf, None, 0.5]),
    }
)
SEVERAL = pa.table({"n": pa.array(range(12_000), pa.int64())})
JOB = {"id": "j1", "status": "SUCCEEDED", "finished": True}


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with connect() as opened:
        yield opened


def run(served: Served, job: Job, rows: pa.Table) -> Job:
    """Runs a submitted job as a worker does."""
    lifecycle.run_whole(served.database, job.id, served.settings.results_dir, rows)
    return job


def number_of_jobs(served: Served) -> int:
    with served.database.read() as session:
        return session.scalar(select(func.count()).select_from(JobRow)) or 0


def test_submitted_job_and_its_result(served: Served, client: Client) -> None:
    job = client.submit(SQL, tables=TABLES, least=0, name="orders", settings={"agg_phase": "TWO_PHASE"})
    assert (job.status, job.name, job.is_finished) == ("QUEUED", "orders", False)
    assert job.details.spec["parameters"] == {"least": 0}
    assert job.details.spec["settings"]["agg_phase"] == "TWO_PHASE"
    result = run(served, job, ROWS).result(timeout=30)
    assert (job.status, job.is_finished, len(result), result.columns[1].type) == ("SUCCEEDED", True, 3, "DECIMAL(19,2)")
    assert client.job(job.id).name == "orders"
    assert [one.id for one in client.jobs(status=["SUCCEEDED"])] == [job.id]
    job.delete()
    with pytest.raises(errors.NotFoundError):
        job.refresh()


def test_rows_have_exact_values(served: Served, client: Client) -> None:
    result = run(served, client.submit(SQL, tables=TABLES, least=0), ROWS).result()
    assert result.rows() == ROWS.to_pylist()
    assert list(result) == result.rows()


def test_frames_have_exact_types(served: Served, client: Client) -> None:
    result = run(served, client.submit(SQL, tables=TABLES, least=0), ROWS).result()
    assert result.to_arrow().equals(ROWS)
    assert pa.Table.from_batches(result.batches()).equals(ROWS)
    frame = result.to_polars()
    assert frame.equals(pl.DataFrame(pl.from_arrow(ROWS)))
    assert frame.schema["d"] == pl.Decimal(19, 2)
    assert frame.schema["t"] == pl.Datetime("us", "UTC")
    pandas = result.to_pandas(integer_object_nulls=True)
    assert list(pandas["i"]) == [1, None, 3]
    assert list(pandas["d"]) == ROWS["d"].to_pylist()


def test_rows_are_looked_up(served: Served, client: Client) -> None:
    job = run(served, client.submit(SQL, tables=TABLES, least=0), ROWS)
    for row in ROWS.to_pylist():
        key = {name: row[name] for name in ("i", "d", "t")}
        assert job.look_up(**key) == [row]
    with pytest.raises(errors.RequestRefusedError) as raised:
        job.look_up(none=1)
    assert raised.value.code == "invalid_lookup"


def test_result_of_several_pages(served: Served, client: Client) -> None:
    result = run(served, client.submit(SQL, tables=TABLES, least=0), SEVERAL).result()
    assert [row["n"] for row in result] == list(range(12_000))
    assert result.to_polars()["n"].to_list() == list(range(12_000))


def test_result_without_rows(served: Served, client: Client) -> None:
    result = run(served, client.submit(SQL, tables=TABLES, least=0), ROWS.slice(0, 0)).result()
    assert (result.rows(), len(result), result.to_polars().shape) == ([], 0, (0, 10))


def test_reports(served: Served, client: Client) -> None:
    job = client.submit(SQL, tables=TABLES, least=0)
    with pytest.raises(errors.NotFoundError) as raised:
        job.plan()
    assert raised.value.code == "plan_not_ready"
    run(served, job, ROWS)
    assert str(job.plan()) == "Scan orders"
    assert job.skew().advice == lifecycle.SKEW.advice
    assert job.metrics().execution_ms == 12


def test_refused_job_has_its_place_in_the_sql(client: Client) -> None:
    sql = "SELECT o.uid,\n  o.amuont AS a\nFROM o"
    with pytest.raises(errors.JobRefusedError) as raised:
        client.sql(sql, tables=TABLES)
    error = raised.value
    assert (error.code, error.line, error.column, error.status, error.field) == ("unknown_column", 2, 3, 422, "/sql")
    assert error.hint == "Did you mean o.amount?"
    assert str(error).split("\n")[-3:] == ["  at line 2, column 3", "    o.amuont AS a", "    ^"]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_refused_job_has_all_errors(client: Client) -> None:
    with pytest.raises(errors.JobRefusedError) as raised:
        client.sql(SQL, tables=TABLES, leest=0)
    assert [(issue.code, issue.line) for issue in raised.value.issues] == [
        ("parameter_missing", 1),
        ("parameter_unused", None),
    ]
    assert all(issue.code in str(raised.value) for issue in raised.value.issues)


def test_refused_field_has_its_pointer(client: Client) -> None:
    with pytest.raises(errors.JobRefusedError) as raised:
        client.explain(SQL, tables=TABLES, least=0, job={"queue": "slow"})
    assert (raised.value.field, raised.value.line) == ("/queue", None)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (JobStatus.FAILED, errors.JobFailedError, "engine_error"),
        (JobStatus.CRASHED, errors.JobFailedError, "engine_error"),
        (JobStatus.TIMED_OUT, errors.JobTimedOutError, "engine_error"),
        (JobStatus.CANCELLED, errors.JobCancelledError, "engine_error"),
    ],
)
def test_job_without_success(
    served: Served, client: Client, status: JobStatus, kind: type[errors.JobFailedError], code: str
) -> None:
    job = client.submit(SQL, tables=TABLES, least=0)
    held = lifecycle.claim(served.database, job.id)
    lifecycle.run(served.database, held)
    lifecycle.end(served.database, held, Ending(status, error=lifecycle.FAILURE))
    assert job.wait().status == status
    with pytest.raises(kind) as raised:
        job.result()
    assert (type(raised.value), raised.value.code, raised.value.job_id) == (kind, code, job.id)


def test_error_at_run_time_shows_its_place_in_the_sql(served: Served, client: Client) -> None:
    job = client.submit(SQL, tables=TABLES, least=0)
    held = lifecycle.claim(served.database, job.id)
    issue = {"code": "invalid_cast", "detail": "It is not a number.", "line": 1, "column": 8}
    problem = Problem.model_validate({**lifecycle.FAILURE.model_dump(), "errors": [issue]})
    lifecycle.run(served.database, held)
    lifecycle.fail(served.database, held, problem)
    # Also in another session, which did not submit it.
    with pytest.raises(errors.JobFailedError) as raised:
        client.job(job.id).result()
    assert f"{SQL[:76]}" in str(raised.value)
    assert "\n         ^" in str(raised.value)


def test_cancelled_job(client: Client) -> None:
    job = client.submit(SQL, tables=TABLES, least=0)
    assert job.cancel().status == "CANCELLED"
    assert job.cancel().status == "CANCELLED"
    with pytest.raises(errors.JobCancelledError):
        job.result()


def test_timeout_of_a_wait_leaves_the_job(client: Client) -> None:
    job = client.submit(SQL, tables=TABLES, least=0)
    with pytest.raises(TimeoutError) as raised:
        job.result(timeout=0.2)
    assert isinstance(raised.value, errors.WaitTimeoutError)
    assert job.refresh().status == "QUEUED"


def test_timeout_of_sql_cancels_the_job(client: Client) -> None:
    with pytest.raises(errors.WaitTimeoutError) as raised:
        client.sql(SQL, tables=TABLES, least=0, timeout=0.2)
    assert client.job(raised.value.job_id).status == "CANCELLED"


def test_interruption_of_sql_cancels_the_job(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, result = threading.Event(), Job.result

    def waiting(job: Job, **options: Any) -> Result:
        waits.set()
        return result(job, **options)

    def interrupt() -> None:
        assert waits.wait(60)
        _thread.interrupt_main()

    monkeypatch.setattr(Job, "result", waiting)
    # A process that a shell starts in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.sql(SQL, tables=TABLES, least=0)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert [job.status for job in client.jobs()] == ["CANCELLED"]


def test_many_threads_share_a_client(served: Served, client: Client) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda least: client.submit(SQL, tables=TABLES, least=least), range(24)))
    assert len({job.id for job in jobs}) == number_of_jobs(served) == 24
    assert {job.details.spec["parameters"]["least"] for job in jobs} == set(range(24))


@pytest.mark.withstands(
    "responses to a submission of the Python client are lost",
    how="a proxy passes the submission on to the service and closes the connection, twice",
    times=2,
    guaranteed="it is sent again with the same Idempotency-Key: one job",
    kind="fault",
)
def test_lost_response_creates_no_second_job(served: Served) -> None:
    proxies: list[Script] = []

    def pass_on(handler: BaseHTTPRequestHandler) -> None:
        (proxy,) = proxies
        seen = proxy.seen[-1]
        response = httpx.request(seen.method, served.url + seen.path, headers=seen.headers, content=seen.body)
        if len(proxy.seen) < 3:
            breaks_off(handler)
        else:
            answers(response.status_code, response.json())(handler)

    with scripted(pass_on) as proxy, connect(proxy.url, retry=20) as client, connect() as direct:
        proxies.append(proxy)
        job = client.submit(SQL, tables=TABLES, least=0)
        assert direct.job(job.id).status == "QUEUED"
    assert len({seen.headers["idempotency-key"] for seen in proxy.seen}) == 1
    assert (len(proxy.seen), number_of_jobs(served)) == (3, 1)


def test_own_idempotency_key(served: Served, client: Client) -> None:
    first, second = (client.submit(SQL, tables=TABLES, least=0, idempotency_key="nightly") for _ in range(2))
    assert first.id == second.id
    with pytest.raises(errors.RequestRefusedError) as raised:
        client.submit(SQL, tables=TABLES, least=1, idempotency_key="nightly")
    assert raised.value.code == "idempotency_key_reused"
    assert number_of_jobs(served) == 1


def sends(body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Returns a step that responds with a file."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return step


def test_download_that_breaks_off_starts_again() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    page = {"columns": [], "rows": [], "total_rows": 3}
    steps = (answers(200, JOB), answers(200, JOB), answers(200, page), breaks_off_amid_the_body, breaks_off)
    with scripted(*steps, sends(sink.getvalue().to_pybytes())) as service, connect(service.url, retry=20) as client:
        assert client.job("j1").result().to_arrow().equals(ROWS)
    assert len(service.seen) == 6


def test_fields_and_states_of_a_newer_service() -> None:
    newer = {**JOB, "status": "MUSING", "finished": False, "mood": {"a": 1}}
    with scripted(answers(200, newer)) as service, connect(service.url) as client:
        assert client.job("j1").status == "MUSING"


@pytest.mark.parametrize("body", [[], "text", {"id": 5}])
def test_server_that_is_no_service(body: Any) -> None:
    with (
        scripted(answers(200, body)) as service,
        connect(service.url) as client,
        pytest.raises(errors.ServiceFailedError),
    ):
        client.job("j1")


def test_service_that_does_not_respond() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with connect(address, retry=0.3) as client, pytest.raises(errors.ServiceUnavailableError, match="does not respond"):
        client.me()


@pytest.mark.parametrize("authentication", ["on"])
def test_keys(served: Served, tmp_path: Path) -> None:
    reader = issue_key(served.database, KeyRequest(name="r", scopes=(KeyScope.READ,)), None).key
    (tmp_path / "key").write_text(reader)
    for wrong in (None, "ek_wrong"):
        with connect(key=wrong) as client, pytest.raises(errors.UnauthorizedError) as raised:
            client.me()
        assert raised.value.code == "unauthenticated"
        assert "ek_wrong" not in str(raised.value)
    with connect(key_file=tmp_path / "key") as client:
        assert client.me().scopes == ("read",)
        with pytest.raises(errors.UnauthorizedError) as raised:
            client.submit(SQL, tables=TABLES, least=0)
    assert raised.value.code == "missing_scope"


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "localhost:8080"},
        {"url": "http://jobs.invalid", "key": "ek_secret"},
        {"key": "two words"},
        {"key": "ek_a", "key_file": "file"},
        {"key_file": "/nowhere"},
    ],
)
def test_wrong_arguments_of_connect(arguments: dict[str, str]) -> None:
    with pytest.raises(errors.ConfigurationError) as raised:
        connect(**arguments)  # type: ignore[arg-type]
    assert "ek_secret" not in str(raised.value)


def test_wrong_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_TIMEOUT_SECONDS", "soon")
    with pytest.raises(errors.ConfigurationError, match="EVENKEEL_TIMEOUT_SECONDS"):
        connect()


def test_missing_package(served: Served, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(served, client.submit(SQL, tables=TABLES, least=0), ROWS).result()
    for package in ("polars", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    for call in (result.to_polars, result.to_arrow, result.to_pandas):
        with pytest.raises(ImportError, match=r"pip install 'evenkeel-client\[\w+\]'"):
            call()
    assert len(result.rows()) == 3


def test_html_is_escaped(served: Served, client: Client) -> None:
    evil = "<script>alert(1)</script>"
    job = client.submit(SQL, tables=TABLES, least=0, name=evil)
    keys = (HotKey(value=evil, share=0.5, estimated_rows=5),)
    hot = HotKeyReport(table=evil, columns=(evil,), role=evil, hot_keys=keys, sampled_rows=1, rows_on_one_task=None)
    skew = lifecycle.SKEW.model_copy(update={"keys": (hot,), "advice": evil})
    held = lifecycle.claim(served.database, job.id)
    tree = lifecycle.REPORT.before.model_copy(update={"text": evil})
    trace = lifecycle.REPORT.rules[0].model_copy(update={"reason": evil})
    lifecycle.plan(
        served.database, held, lifecycle.REPORT.model_copy(update={"before": tree, "after": tree, "rules": (trace,)})
    )
    lifecycle.run(served.database, held)
    rows = pa.table({evil: [evil], "x": [[evil]]})
    metrics = replace(lifecycle.METRICS, skew=skew)
    lifecycle.succeed(served.database, held, served.settings.results_dir, rows, metrics=metrics)
    shown: list[Any] = [job.wait(), job.result(), job.plan(), job.metrics(), job.skew()]
    for one in shown:
        html = one._repr_html_()
        assert "&lt;script&gt;" in html, one
        assert "<script" not in html, one
