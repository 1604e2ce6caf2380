"""`SpecError`, an error in a job; `Problem`, RFC 9457 problem details; and the problems that workers store.

The API answers a `SpecError` with 422; a worker stores it as the job's error. It has a stable code in snake_case
(`unknown_column`) and one or more issues, each with its place and what to do about it.

Every error has the form of a `Problem`, both in responses and as the stored error of a job or attempt. The functions
at the end of the module return the problems of jobs and attempts that did not fail by an error in the job itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, Field


class Issue(BaseModel):
    """One error in a request, and its place."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(description="Stable code of this issue, for example `unknown_column`.")
    detail: str = Field(description="What is wrong and what to do about it.")
    pointer: str | None = Field(
        default=None, description="JSON pointer into the request body, for example `/sql` or `/query/where`."
    )
    line: int | None = Field(default=None, description="Line in the SQL text, or in posted rows, from 1.")
    column: int | None = Field(default=None, description="Column in the SQL text, from 1.")
    suggestions: tuple[str, ...] = Field(default=(), description="Existing names that are similar to the unknown one.")


_LISTED_TABLES = 5


_SHOWN = 100
_LONG_WORD = re.compile(rf"\S{{{2 * _SHOWN},}}")
"""Words of clients that are too long to be repeated in a message."""


class SpecError(Exception):
    """A job that cannot be accepted or run as it is written.

    Its code is that of `issues[0]`; further issues may have other codes.
    """

    def __init__(self, issues: Sequence[Issue]) -> None:
        if not issues:
            raise ValueError("a SpecError needs at least one issue")
        self.issues: tuple[Issue, ...] = tuple(issues)
        super().__init__("; ".join(issue.detail for issue in issues))

    @property
    def code(self) -> str:
        """The stable code of the first issue."""
        return self.issues[0].code

    @classmethod
    def of(
        cls,
        code: str,
        detail: str,
        *,
        pointer: str | None = None,
        line: int | None = None,
        column: int | None = None,
        suggestions: Sequence[str] = (),
    ) -> SpecError:
        """Returns a `SpecError` with a single issue."""
        names = tuple(suggestions)
        shown = _LONG_WORD.sub(lambda word: f"{word.group()[:_SHOWN]}…", detail)
        return cls([Issue(code=code, detail=shown, pointer=pointer, line=line, column=column, suggestions=names)])


def nearest_names(
    name: str, candidates: Sequence[str], limit: int = 3, *, min_similarity: float = 0.5
) -> tuple[str, ...]:
    """Returns the candidates that are most similar to `name`, best first; letter case is ignored.

    `min_similarity` is the least similarity of two names, from 0 to 1, as `difflib` calculates it.
    """
    by_folded: dict[str, str] = {}
    for candidate in candidates:
        by_folded.setdefault(candidate.casefold(), candidate)
    close = get_close_matches(name.casefold(), list(by_folded), n=limit, cutoff=min_similarity)
    return tuple(by_folded[folded] for folded in close)


def did_you_mean(suggestions: Sequence[str]) -> str:
    """Returns ` Did you mean a, b?` to append to a sentence; empty if there are no suggestions."""
    return f" Did you mean {', '.join(suggestions)}?" if suggestions else ""


def its_tables(names: Sequence[str]) -> str:
    """Returns a sentence with the first five tables of a job, to append to another; empty if it has none.

    >>> its_tables(["o", "c"])
    ' Its tables: o, c.'
    """
    more = ", …" if len(names) > _LISTED_TABLES else ""
    return f" Its tables: {', '.join(names[:_LISTED_TABLES])}{more}." if names else ""


class Problem(BaseModel):
    """An error in the form of RFC 9457 (problem details)."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(description="Relative URI of this kind of problem.", examples=["/problems/unknown_column"])
    title: str = Field(description="The kind of problem, in a few words.")
    status: int = Field(
        description="HTTP status. As the error of a job: 422 if the job itself caused it, otherwise 500."
    )
    detail: str = Field(description="What happened this time and what to do about it.")
    code: str = Field(description="Stable code, the last part of `type`.")
    instance: str | None = Field(default=None, description="The path of the request.")
    request_id: str | None = Field(
        default=None, description="The `X-Request-Id` of the request, to find it in the logs."
    )
    errors: tuple[Issue, ...] = Field(default=(), description="Each error, with its place.")

    @classmethod
    def of(
        cls, code: str, status: int, detail: str, *, title: str | None = None, errors: Sequence[Issue] = ()
    ) -> Problem:
        """Returns a problem with the type of `code`. Without a `title`, the code is its title: `Timed out`."""
        title = title or code.replace("_", " ").capitalize()
        return cls(type=f"/problems/{code}", title=title, status=status, detail=detail, code=code, errors=tuple(errors))


def problem_of_spec_error(error: SpecError) -> Problem:
    """Returns a `SpecError` as a problem, with status 422."""
    return Problem.of(error.code, 422, str(error), errors=error.issues)


def cancelled() -> Problem:
    """Returns the problem of a job that was cancelled on request."""
    return Problem.of("cancelled", 422, "The job was cancelled on request.")


def timed_out(timeout_ms: int) -> Problem:
    """Returns the problem of a job that exceeded `limits.timeout`, counted from its first start."""
    detail = f"The job did not end within {timeout_ms / 1000:g} s of its first start."
    way_out = "Raise limits.timeout, or read the skew report in its metrics to find out what took the time."
    return Problem.of("timed_out", 422, f"{detail} {way_out}")


def result_too_large() -> Problem:
    """Returns the problem of a job whose result exceeded `EVENKEEL_LIMITS_RESULT_BYTES`."""
    detail = "The result exceeded the service's size limit (EVENKEEL_LIMITS_RESULT_BYTES). Aggregate or filter further."
    return Problem.of("result_too_large", 422, detail)


def worker_lost(attempts: int) -> Problem:
    """Returns the problem of a job each of whose attempts lost its worker or its Spark driver."""
    times = "once" if attempts == 1 else f"{attempts} times"
    detail = f"The worker or its Spark driver was lost while it ran the job, {times}."
    return Problem.of(
        "worker_lost", 500, f"{detail} A possible cause is a job that needs more memory than the driver has."
    )


def lease_lost(worker: str) -> Problem:
    """Returns the problem of an attempt whose worker sent no heartbeat until the lease expired."""
    return Problem.of("worker_lost", 500, f"Worker {worker} sent no heartbeat until the lease expired.")


def driver_lost(worker: str) -> Problem:
    """Returns the problem of an attempt whose Spark driver died, stopped responding, or lost its cluster."""
    detail = f"The Spark driver of worker {worker} died, stopped responding or lost its cluster."
    return Problem.of("driver_lost", 500, detail, title="Spark driver lost")


def driver_not_started() -> Problem:
    """Returns the problem of a job whose own Spark driver could not use the cluster."""
    detail = (
        "The job has a Spark driver of its own (isolation: driver), and that driver could not use the cluster. The log "
        "of the worker has the cause; often no cores are free. Submit the job again later, or leave out 'isolation'."
    )
    return Problem.of("driver_not_started", 500, detail, title="Spark driver not started")


def driver_ended(worker: str) -> Problem:
    """Returns the problem of an attempt whose Spark driver the worker stopped because of another job's work.

    The attempt does not count against the job's `max_attempts`.
    """
    detail = (
        f"Worker {worker} stopped its Spark driver because work of another job continued in it after that job had "
        "ended, and handed this job back to the queue."
    )
    return Problem.of("driver_ended", 500, detail, title="Spark driver ended")


def handed_back(worker: str) -> Problem:
    """Returns the problem of an attempt that a stopping worker handed back.

    The attempt does not count against the job's `max_attempts`.
    """
    return Problem.of("handed_back", 500, f"Worker {worker} was stopped and handed the job back to the queue.")


def storage_unavailable(detail: str) -> Problem:
    """Returns the problem of a job that could not read from the object store or HDFS of a data root."""
    title = "The data store is not available"
    return Problem.of("storage_unavailable", 500, f"{detail} Submit it again.", title=title)


def internal_error(job_id: str, attempt: int) -> Problem:
    """Returns the problem of an unexpected error. The log has the details, which clients do not get."""
    detail = f"Its log has the details under job_id {job_id}, attempt {attempt}."
    return Problem.of("internal_error", 500, f"An unexpected error occurred in the worker. {detail}")
