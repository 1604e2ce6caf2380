"""What both kinds of job and of result have in common: their fields and representations, and no requests."""

from __future__ import annotations

import tempfile
from typing import IO

from . import html, responses
from .operations import JobState, failure
from .problem_text import Source
from .responses import Column, ResultPage
from .text import amount

ROWS_PER_PAGE = 10_000
"""The service's maximum: for each page, it opens the result again."""

FIRST_ROWS = 100
"""The rows that come with a result."""

_IN_MEMORY_BYTES = 16 << 20


class JobFields:
    """A job as it was known last: requests of its methods update it."""

    def __init__(self, state: JobState, source: Source | None) -> None:
        self._state = state
        self._source = source
        self._known = state.job

    @property
    def id(self) -> str:
        """Its id."""
        return self._known.id

    @property
    def name(self) -> str:
        """Its name."""
        return self._known.name

    @property
    def status(self) -> str:
        """Its state when it was last asked for, such as QUEUED, RUNNING or SUCCEEDED. `refresh` asks again."""
        return self._known.status

    @property
    def is_finished(self) -> bool:
        """Whether it had ended when it was last asked for."""
        return self._known.finished

    @property
    def details(self) -> responses.Job:
        """All its fields, as the API describes them: times, attempts, queue, error, spec."""
        return self._known

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r} {self.status}>"

    def _repr_html_(self) -> str:
        return html.job(self._known)

    def _update(self, state: JobState) -> None:
        self._state, self._known = state, state.job

    def _raise_failure(self) -> None:
        error = failure(self._known, self._source)
        if error is not None:
            raise error


class ResultFields:
    """The rows of a job. The first of them are known; the others are read when they are needed."""

    def __init__(self, job_id: str, page: ResultPage) -> None:
        self._job_id = job_id
        self._first = page

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._job_id

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, each with `name` and `type`, which is a type of Spark such as `DECIMAL(10,2)`."""
        return self._first.columns

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return self._first.total_rows

    def __len__(self) -> int:
        return self.row_count

    def __repr__(self) -> str:
        names = ", ".join(f"{column.name} {column.type}" for column in self.columns)
        return f"<{type(self).__name__} of {amount(self.row_count, 'row')}: {names}>"

    def _repr_html_(self) -> str:
        return html.result(self._first)


def temporary_file() -> IO[bytes]:
    """Returns a file that is deleted when nothing uses it; a small one is in memory."""
    return tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)
