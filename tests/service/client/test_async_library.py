"""The client for asyncio: it has the methods of the blocking one, and does the same."""

from __future__ import annotations

import asyncio
import inspect
import io
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from service.client import async_client, client, errors, html
from service.client.async_client import AsyncClient, connect_async
from service.client.progress import shown_progress
from service.client.responses import Job
from tests.support import lifecycle
from tests.support.scripted import answers, breaks_off, scripted
from tests.support.served import Served

SQL = "SELECT o.uid, COUNT(*) AS orders FROM o GROUP BY o.uid"
TABLES = {"o": "orders.parquet"}
ROWS = pa.table({"n": pa.array(range(11_000), pa.int64())})
PAIRS = [
    (client.Client, async_client.AsyncClient),
    (client.Job, async_client.AsyncJob),
    (client.Result, async_client.AsyncResult),
]
RENAMED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}


def methods(kind: type) -> dict[str, Any]:
    """Returns the methods that a class defines itself, except its constructor."""
    found = {name: member for name, member in vars(kind).items() if callable(member) and name != "__init__"}
    return {name: member for name, member in found.items() if name != "__doc__"}


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_clients_have_the_same_methods(blocking: type, awaited: type) -> None:
    ours, theirs = methods(blocking), methods(awaited)
    assert {RENAMED.get(name, name) for name in ours} == set(theirs)
    for name, method in ours.items():
        twin = theirs[RENAMED.get(name, name)]
        assert parameters(method) == parameters(twin), name
        if not name.startswith("_"):
            assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), name
            assert inspect.getdoc(twin), name


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


def test_both_connect_alike() -> None:
    assert parameters(client.connect) == parameters(connect_async)


@asynccontextmanager
async def submitted(served: Served, rows: pa.Table = ROWS) -> AsyncIterator[tuple[AsyncClient, async_client.AsyncJob]]:
    """Opens a client with a job that has succeeded."""
    async with connect_async() as opened:
        job = await opened.submit(SQL, tables=TABLES, name="orders")
        lifecycle.run_whole(served.database, job.id, served.settings.results_dir, rows)
        yield opened, job


def test_rows_frames_and_reports(served: Served) -> None:
    async def main() -> None:
        async with submitted(served) as (opened, job):
            result = await job.result()
            assert [row["n"] async for row in result] == ROWS["n"].to_pylist()
            assert await result.rows() == ROWS.to_pylist()
            assert (await result.to_arrow()).equals(ROWS)
            assert (await result.to_polars())["n"].to_list() == ROWS["n"].to_pylist()
            assert list((await result.to_pandas())["n"]) == ROWS["n"].to_pylist()
            assert sum([batch.num_rows async for batch in result.batches()]) == len(result) == 11_000
            assert str(await job.plan()) == "Scan orders"
            assert (await job.skew()).advice == lifecycle.SKEW.advice
            assert [one.id for one in await opened.jobs()] == [job.id]
            await job.delete()
            with pytest.raises(errors.NotFoundError):
                await opened.job(job.id)

    asyncio.run(main())


def test_many_jobs_at_once(served: Served) -> None:
    async def main() -> None:
        async with connect_async() as opened:
            jobs = await asyncio.gather(*(opened.submit(SQL, tables=TABLES) for _ in range(20)))
            waits = [asyncio.create_task(job.result()) for job in jobs]
            for job in jobs:
                lifecycle.run_whole(served.database, job.id, served.settings.results_dir, ROWS.slice(0, 2))
            assert [len(result) for result in await asyncio.gather(*waits)] == [2] * 20

    asyncio.run(main())


def test_errors(served: Served) -> None:
    async def main() -> None:
        async with connect_async() as opened:
            with pytest.raises(errors.JobRefusedError) as raised:
                await opened.explain("SELECT o.x FROM o", tables=TABLES)
            assert (raised.value.code, raised.value.line, raised.value.column) == ("unknown_column", 1, 8)
            with pytest.raises(TimeoutError) as late:
                await opened.sql(SQL, tables=TABLES, timeout=0.2)
            assert isinstance(late.value, errors.WaitTimeoutError)
            job = await opened.job(late.value.job_id)
            with pytest.raises(errors.JobCancelledError):
                await job.result()

    asyncio.run(main())


def test_cancelled_task_cancels_its_job(served: Served) -> None:
    async def main() -> None:
        async with connect_async() as opened:
            task = asyncio.create_task(opened.sql(SQL, tables=TABLES))
            while not (jobs := await opened.jobs()):
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await opened.job(jobs[0].id)).status == "CANCELLED"

    asyncio.run(main())


def test_lost_responses_and_busy_service() -> None:
    job = {"id": "j1", "status": "QUEUED", "finished": False}
    steps = (breaks_off, answers(503, {}, Retry_After="1"), answers(202, job))

    async def main() -> None:
        with scripted(*steps) as service:
            async with connect_async(service.url, retry=20) as opened:
                assert (await opened.submit(SQL, tables=TABLES)).id == "j1"
        assert len({seen.headers["idempotency-key"] for seen in service.seen}) == 1
        assert len(service.seen) == 3

    asyncio.run(main())


STATES = [
    Job(id="1", name="a\x1b", status="QUEUED", finished=False, waiting_for="slot"),
    Job.model_validate(
        {"id": "1", "status": "RUNNING", "finished": False, "progress": {"tasks_done": 5, "tasks_total": 10}}
    ),
    Job(id="1", status="SUCCEEDED", finished=True),
]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return True


def test_progress_in_a_terminal_is_a_bar() -> None:
    with shown_progress(stream := Terminal()) as show:
        for state in STATES:
            show(state)
    drawn = [line.rstrip() for line in stream.getvalue().split("\r")]
    assert "waiting for a free worker" in drawn[1]
    assert drawn[2].startswith(f"RUNNING    [{'#' * 15}{'-' * 15}] 5/10 tasks")
    assert drawn[3].startswith(f"SUCCEEDED  [{'#' * 30}]")
    assert "\x1b" not in stream.getvalue()


def test_progress_in_a_log_is_a_line_for_each_state() -> None:
    with shown_progress(stream := io.StringIO()) as show:
        for state in (*STATES, STATES[-1]):
            show(state)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "a\\x1b QUEUED waiting for a free worker, or for Spark to start"
    assert [line.split()[-1] for line in lines[1:]] == ["RUNNING", "SUCCEEDED"]


def test_progress_in_a_notebook_updates_one_area(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Area:
        def __init__(self, text: str) -> None:
            shown.append(text)

        def update(self, _other: Area) -> None:
            """Shows another text."""

    class Shell:
        kernel = True

    # What the client uses of IPython, which the tests do not install.
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = Shell
    vars(display).update(HTML=Area, display=lambda area, display_id: area)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with shown_progress(stream := io.StringIO()) as show:
        for state in STATES:
            show(state)
    assert stream.getvalue() == ""
    assert 'value="5" max="10"' in shown[2]


def test_progress_as_html_is_escaped() -> None:
    assert "<script" not in html.progress("<script>", None, 0, "<script>", 1)
