"""The errors of the client. Each has a message, a stable code, and what to do.

    EvenkeelError
    ├── ConfigurationError          the address, the key or a variable is invalid; nothing was sent
    ├── ArgumentError               an argument is invalid; nothing was sent; also a ValueError
    ├── MissingPackageError         an optional package is not installed; also an ImportError
    ├── RequestRefusedError         the service refused the request
    │   └── JobRefusedError         … because of the job: its SQL, tables, parameters or settings
    ├── UnauthorizedError           the key is missing or not valid, or lacks the scope
    ├── NotFoundError               the job does not exist, or has no such report or result (any more)
    ├── ConflictError               the state of the job does not allow it
    ├── ServiceUnavailableError     the service does not respond or is too busy, even after retries
    ├── ServiceFailedError          the service had an internal error, or sent an invalid response
    ├── WaitTimeoutError            the job did not end in time, and continues; also a TimeoutError
    └── JobFailedError              the job ended without success
        ├── JobCancelledError       … because it was cancelled
        └── JobTimedOutError        … because it exceeded its time limit

`str(error)` has the code, the sentence, and the line of the SQL with a caret below the column.
"""

from __future__ import annotations

from typing import ClassVar

from ..contract.problems import Issue, Problem, did_you_mean
from .problem_text import Source, problem_head, problem_lines


class EvenkeelError(Exception):
    """An expected failure. All other errors of this package are subclasses.

    `problem` is the answer of the service (RFC 9457), `status` its HTTP status, and `job_id` the job, if there are any.
    """

    default_code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        advice: str = "",
        problem: Problem | None = None,
        status: int | None = None,
        source: Source | None = None,
        job_id: str = "",
    ) -> None:
        # All of them, so that an error can be pickled.
        super().__init__(message, advice, problem, status, source, job_id)
        self.message = message
        self.advice = advice
        self.problem = problem
        self.status = status
        self.source = source
        self.job_id = job_id

    def __str__(self) -> str:
        return "\n  ".join((self.head, *self.lines, *([self.advice] if self.advice else ())))

    @property
    def head(self) -> str:
        """The message in one line, with the code of the service's answer."""
        return self.message if self.problem is None else problem_head(self.problem, self.source)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines with the place of each error."""
        return () if self.problem is None else tuple(problem_lines(self.problem, self.source))

    @property
    def code(self) -> str:
        """The stable code, such as `unknown_column`. The documentation lists all codes of the service."""
        return self.default_code if self.problem is None else self.problem.code

    @property
    def detail(self) -> str:
        """What happened, in one sentence."""
        return self.message if self.problem is None else self.problem.detail

    @property
    def issues(self) -> tuple[Issue, ...]:
        """Each error of the request, with `code`, `detail`, `pointer`, `line`, `column` and `suggestions`."""
        return () if self.problem is None else self.problem.errors

    @property
    def line(self) -> int | None:
        """Line of the first error in the SQL, from 1."""
        return self.issues[0].line if self.issues else None

    @property
    def column(self) -> int | None:
        """Column of the first error in the SQL, from 1."""
        return self.issues[0].column if self.issues else None

    @property
    def field(self) -> str | None:
        """JSON pointer of the first error into the job, such as `/tables/f/path`."""
        return self.issues[0].pointer if self.issues else None

    @property
    def hint(self) -> str:
        """What to do, such as `Did you mean f.carrier?`; empty if only `detail` says it."""
        suggestions = self.issues[0].suggestions if self.issues else ()
        return did_you_mean(suggestions).strip() or self.advice

    @property
    def request_id(self) -> str | None:
        """The id of the request, for a search in the logs of the service."""
        return None if self.problem is None else self.problem.request_id


class ConfigurationError(EvenkeelError):
    """The address, the key or a variable is invalid. Nothing was sent."""

    default_code = "invalid_configuration"


class ArgumentError(EvenkeelError, ValueError):
    """An argument is invalid. Nothing was sent."""

    default_code = "invalid_argument"


class MissingPackageError(EvenkeelError, ImportError):
    """An optional package is not installed."""

    default_code = "missing_package"


class RequestRefusedError(EvenkeelError):
    """The service refused the request, which would fail again."""

    default_code = "request_refused"


class JobRefusedError(RequestRefusedError):
    """The service refused the job. `issues` has every error, with its line and column or its field."""


class UnauthorizedError(EvenkeelError):
    """The API key is missing or not valid, or lacks the scope."""

    default_code = "unauthorized"


class NotFoundError(EvenkeelError):
    """The job does not exist, or has no such report or result (any more)."""

    default_code = "not_found"


class ConflictError(EvenkeelError):
    """The state of the job does not allow the request."""

    default_code = "conflict"


class ServiceUnavailableError(EvenkeelError):
    """The service does not respond or is too busy, even after retries."""

    default_code = "service_unavailable"


class ServiceFailedError(EvenkeelError):
    """The service had an internal error, or sent a response that does not have the expected form."""

    default_code = "service_failed"


class WaitTimeoutError(EvenkeelError, TimeoutError):
    """The job did not end in time. It continues, unless `sql` submitted it."""

    default_code = "wait_timeout"


class JobFailedError(EvenkeelError):
    """The job ended without success. `job_id` is its id; the code says why."""

    default_code = "job_failed"


class JobCancelledError(JobFailedError):
    """The job was cancelled."""

    default_code = "cancelled"


class JobTimedOutError(JobFailedError):
    """The job exceeded its time limit, `limits.timeout`."""

    default_code = "timed_out"
