"""The blocking client: `connect` returns a `Client`, which submits jobs and returns results.

`async_client.py` has the same with `await`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel

from . import frames, operations, requests
from .configuration import exchange_of
from .connection import Connection
from .errors import EvenkeelError
from .exchange import Steps
from .job import FIRST_ROWS, ROWS_PER_PAGE, JobFields, ResultFields, temporary_file
from .job_spec import Given, Parameters, Query, Table, job_spec
from .operations import JobState
from .problem_text import Source
from .progress import nothing_shown, shown_progress
from .reports import Metrics, Plan, Skew
from .responses import JobSummary, Me, ResultPage
from .rows import python_rows

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")


def connect(
    url: str | None = None,
    key: str | None = None,
    *,
    key_file: str | PathLike[str] | None = None,
    timeout: float | None = None,
    retry: float | None = None,
) -> Client:
    """Returns a client of the service at `url`, with an API key if the service needs one. Sends no request.

    Without arguments, EVENKEEL_URL, EVENKEEL_API_KEY and EVENKEEL_API_KEY_FILE are used; the default address is
    `http://127.0.0.1:8080`. `timeout` is the longest wait for a response, and `retry` how long requests to a service
    are sent again that does not respond or is busy; both in seconds, by default EVENKEEL_TIMEOUT_SECONDS and
    EVENKEEL_RETRY_SECONDS. Raises ConfigurationError.
    """
    return Client(Connection(exchange_of(url, key, key_file, timeout, retry)))


class Client:
    """The jobs of one service. Several threads may use it; close it, or use it in a `with` statement."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._exchange = connection.exchange

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._exchange.url

    def sql(
        self,
        query: Query,
        *,
        tables: Mapping[str, Table] | None = None,
        parameters: Parameters | None = None,
        settings: Mapping[str, Any] | BaseModel | None = None,
        name: str | None = None,
        job: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        progress: bool = False,
        idempotency_key: str | None = None,
        **values: Any,
    ) -> Result:
        """Runs SQL and returns its result. The arguments are those of `submit` and `Job.result`.

        If the call is interrupted or takes more than `timeout` seconds, the job is cancelled.
        """
        given = Given(query, tables, parameters, settings, name, job, values)
        submitted = self._submit(given, idempotency_key)
        try:
            return submitted.result(timeout=timeout, progress=progress)
        except (KeyboardInterrupt, TimeoutError):
            with suppress(EvenkeelError):
                submitted.cancel()
            raise

    def submit(
        self,
        query: Query,
        *,
        tables: Mapping[str, Table] | None = None,
        parameters: Parameters | None = None,
        settings: Mapping[str, Any] | BaseModel | None = None,
        name: str | None = None,
        job: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **values: Any,
    ) -> Job:
        """Submits a job and returns it at once. Raises JobRefusedError, with every error and its line and column.

        `query` is SQL, or a whole job. `tables` has a path or an object for each name in the SQL. `values` are the
        parameters `:name`; `parameters` has those whose name is an argument of this method, or the list for `?`.
        `settings` are those of the specification, also with dotted names. `job` has its other fields, such as `limits`,
        `queue`, `mode` and `sink`. All tries of the request have one `idempotency_key`, so that they create one job.
        """
        return self._submit(Given(query, tables, parameters, settings, name, job, values), idempotency_key)

    def explain(
        self,
        query: Query,
        *,
        tables: Mapping[str, Table] | None = None,
        parameters: Parameters | None = None,
        settings: Mapping[str, Any] | BaseModel | None = None,
        name: str | None = None,
        job: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> Plan:
        """Plans a job without running it. The arguments are those of `submit`."""
        spec, source = job_spec(Given(query, tables, parameters, settings, name, job, values))
        return self._run(operations.fetched(self._exchange, requests.explanation(spec, source), Plan))

    def job(self, job_id: str) -> Job:
        """Returns the job with an id. Raises NotFoundError."""
        return Job(self, self._run(operations.found(self._exchange, job_id)), None)

    def jobs(self, limit: int = 20, **filters: Any) -> list[JobSummary]:
        """Returns the newest jobs, at most `limit`; 0 for all. `filters` are those of the API: `status`, `name`, …"""
        return self._run(operations.listed(self._exchange, filters, limit))

    def me(self) -> Me:
        """Returns the tenant and the scopes of the key. Raises UnauthorizedError."""
        return self._run(operations.fetched(self._exchange, requests.me(), Me))

    def close(self) -> None:
        """Closes the connections. Jobs continue."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def _submit(self, given: Given, idempotency_key: str | None) -> Job:
        spec, source = job_spec(given)
        return Job(self, self._run(operations.submitted(self._exchange, spec, source, idempotency_key)), source)

    def _run(self, steps: Steps[T]) -> T:
        return self._connection.run(steps)

    def _page(self, job_id: str, size: int, cursor: str = "") -> ResultPage:
        return self._run(operations.page(self._exchange, job_id, size, cursor))

    def _download(self, job_id: str) -> IO[bytes]:
        file = temporary_file()
        self._run(operations.downloaded(self._exchange, job_id, file))
        return file


class Job(JobFields):
    """A job. Its methods send requests; its properties are those of the last response."""

    def __init__(self, client: Client, state: JobState, source: Source | None) -> None:
        super().__init__(state, source)
        self._client = client
        self._exchange = client._exchange

    def refresh(self) -> Job:
        """Asks for its current state and returns itself."""
        self._update(self._client._run(operations.found(self._exchange, self.id)))
        return self

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> Job:
        """Waits until it has ended or is STOPPED, and returns itself, however it ended.

        Raises WaitTimeoutError after `timeout` seconds; the job continues. With `progress`, shows it as `progress()`.
        """
        if progress:
            return self.progress(timeout)
        self._update(self._client._run(operations.ended(self._exchange, self.id, nothing_shown, timeout=timeout)))
        return self

    def progress(self, timeout: float | None = None) -> Job:
        """Waits like `wait`, with a bar in a terminal or notebook, or with a line for each state on standard error."""
        with shown_progress() as show:
            self._update(self._client._run(operations.ended(self._exchange, self.id, show, timeout=timeout)))
        return self

    def result(self, timeout: float | None = None, *, progress: bool = False, wait: bool = True) -> Result:
        """Waits until it has ended, and returns its result; without `wait`, the current one of a streaming job.

        Raises JobFailedError if it did not succeed, and WaitTimeoutError after `timeout` seconds.
        """
        if wait:
            self.wait(timeout, progress=progress)
            self._raise_failure()
        return Result(self._client, self.id, self._client._page(self.id, FIRST_ROWS))

    def look_up(self, **key: Any) -> list[dict[str, Any]]:
        """Returns the rows of its current result with these values, as `rows` of a result does. If rows of a streaming
        job replace each other, name all columns of their keys. Raises RequestRefusedError for others.
        """
        page = self._client._run(operations.fetched(self._exchange, requests.rows_with(self.id, key), ResultPage))
        return list(python_rows(page.columns, page.rows))

    def plan(self) -> Plan:
        """Returns its plan before and after the rules. Raises NotFoundError until it is planned."""
        return self._client._run(operations.fetched(self._exchange, requests.plan(self.id), Plan))

    def metrics(self, slots: int | None = None) -> Metrics:
        """Returns the measurements of its run, with savings for `slots`. Raises NotFoundError until it has run."""
        return self._client._run(operations.fetched(self._exchange, requests.metrics(self.id, slots), Metrics))

    def skew(self) -> Skew:
        """Returns whether it was skewed, and what to change. Raises NotFoundError until it has run."""
        return self.metrics().skew

    def cancel(self) -> Job:
        """Cancels it, and returns itself; a job that has ended stays as it is."""
        self._update(self._client._run(operations.cancelled(self._exchange, self.id)))
        return self

    def stop(self) -> Job:
        """Stops a streaming job after its current mini-batch, and returns itself."""
        self._update(self._client._run(operations.answered(self._exchange, requests.stop(self.id))))
        return self

    def resume(self, *, scratch: bool = False, settings: Mapping[str, Any] | None = None) -> Job:
        """Resumes a stopped streaming job after its last mini-batch, or from scratch, and returns itself."""
        body = {"from": "scratch" if scratch else "checkpoint", "settings": dict(settings or {})}
        self._update(self._client._run(operations.answered(self._exchange, requests.resumption(self.id, body))))
        return self

    def delete(self) -> None:
        """Deletes it with its result and reports. Raises ConflictError until it has ended."""
        self._client._run(self._exchange.send(requests.deletion(self.id)))


class Result(ResultFields):
    """The rows of a job. `to_polars`, `to_pandas` and `to_arrow` read all of them, with their exact types."""

    def __init__(self, client: Client, job_id: str, page: ResultPage) -> None:
        super().__init__(job_id, page)
        self._client = client

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows, each as a dictionary by column.

        A DECIMAL is a `Decimal`, a DATE a `date`, a TIMESTAMP a `datetime` in UTC, a TIMESTAMP_NTZ one without a zone.
        """
        return list(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows as `rows` does; at most 10,000 are in memory."""
        page = self._first
        while True:
            yield from python_rows(page.columns, page.rows)
            if not page.next_cursor:
                return
            page = self._client._page(self.job_id, ROWS_PER_PAGE, page.next_cursor)

    def to_polars(self) -> pl.DataFrame:
        """Returns a DataFrame of polars. Raises MissingPackageError without polars."""
        with self._client._download(self.job_id) as file:
            return frames.polars_frame(file)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Returns a DataFrame of pandas. `options` are those of `pyarrow.Table.to_pandas`. Raises MissingPackageError
        without pandas and pyarrow.
        """
        with self._client._download(self.job_id) as file:
            return frames.pandas_frame(file, options)

    def to_arrow(self) -> pa.Table:
        """Returns a table of pyarrow. Raises MissingPackageError without pyarrow."""
        with self._client._download(self.job_id) as file:
            return frames.arrow_table(file)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields batches of pyarrow. The result is downloaded to a temporary file; only one batch is in memory."""
        with self._client._download(self.job_id) as file:
            yield from frames.arrow_batches(file)
