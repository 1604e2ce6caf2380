"""What can be wrong with a job, told the same way wherever it is found out.

SpecError                  the caller's job cannot be accepted or run as it is
    code        stable, machine-readable, snake_case (`unknown_column`)
    issues      one or more places, each with what to do

A `SpecError` knows no HTTP status: the service answers 422 with it, a worker stores it as the job's error.

RFC 9457 problem details: the one shape of every error, whether answered to a request or stored as a job's end.

The problems with which a job or an attempt ends other than by an error in the job itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, Field


class Issue(BaseModel):
    """One thing that is wrong, and where."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(description="Stable code of this issue, for example `unknown_column`.")
    detail: str = Field(description="What is wrong and what to do about it.")
    pointer: str | None = Field(
        default=None, description="JSON pointer into the request body, for example `/sql` or `/query/where`."
    )
    line: int | None = Field(default=None, description="Line in the SQL text, or in posted rows, from 1.")
    column: int | None = Field(default=None, description="Column in the SQL text, from 1.")
    suggestions: tuple[str, ...] = Field(default=(), description="The nearest names that do exist.")


class SpecError(Exception):
    """A job that cannot be accepted or run as it is written.

    `issues[0]` gives the code of the whole; further issues may have other codes.
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
        """A `SpecError` with a single issue."""
        return cls(
            [
                Issue(
                    code=code,
                    detail=detail,
                    pointer=pointer,
                    line=line,
                    column=column,
                    suggestions=tuple(suggestions),
                )
            ]
        )


def nearest_names(name: str, candidates: Sequence[str], limit: int = 3, *, alike: float = 0.5) -> tuple[str, ...]:
    """The candidates that read most like `name`, best first; compared without regard to case.

    `alike` is the least share of letters that two names have in common, from 0 to 1.
    """
    by_folded: dict[str, str] = {}
    for candidate in candidates:
        by_folded.setdefault(candidate.casefold(), candidate)
    close = get_close_matches(name.casefold(), list(by_folded), n=limit, cutoff=alike)
    return tuple(by_folded[folded] for folded in close)


def did_you_mean(suggestions: Sequence[str]) -> str:
    """` Did you mean a, b?`, or nothing where there is no suggestion; to be appended to a sentence."""
    return f" Did you mean {', '.join(suggestions)}?" if suggestions else ""


class Problem(BaseModel):
    """What went wrong, for people and for programs."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(description="Relative URI of this kind of problem.", examples=["/problems/unknown_column"])
    title: str = Field(description="The kind of problem, in a few words.")
    status: int = Field(
        description="HTTP status; 422 for a job that failed by its own fault, 500 for one that did not."
    )
    detail: str = Field(description="What happened this time and what to do about it.")
    code: str = Field(description="Stable code, the last part of `type`.")
    instance: str | None = Field(default=None, description="The path that was asked for.")
    request_id: str | None = Field(
        default=None, description="The `X-Request-Id` of the request that it answers, for the logs."
    )
    errors: tuple[Issue, ...] = Field(default=(), description="Every single place that is wrong.")


def problem_of_spec_error(error: SpecError) -> Problem:
    """The problem that tells a caller what is wrong with a job."""
    return Problem(
        type=f"/problems/{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=422,
        detail=str(error),
        code=error.code,
        errors=error.issues,
    )


def cancelled() -> Problem:
    """The client asked for it."""
    return _problem("cancelled", "Cancelled", 422, "The job was cancelled on request.")


def timed_out(timeout_ms: int) -> Problem:
    """The job's own time limit, counted from its first start, has passed."""
    return _problem(
        "timed_out",
        "Timed out",
        422,
        f"The job did not end within {timeout_ms / 1000:g} s of its first start. Raise limits.timeout, or see the "
        "skew report of its metrics for what took the time.",
    )


def result_too_large() -> Problem:
    """The result outgrew the limit of the service."""
    return _problem(
        "result_too_large",
        "Result too large",
        422,
        "The result outgrew what one may take here (EVENKEEL_LIMITS_RESULT_BYTES). Aggregate or filter further.",
    )


def worker_lost(attempts: int) -> Problem:
    """Every attempt lost its worker or its Spark driver."""
    times = "once" if attempts == 1 else f"{attempts} times"
    return _problem(
        "worker_lost",
        "Worker lost",
        500,
        f"The worker or its Spark driver went away while running the job, {times}. A job that needs more memory than "
        "the driver has does this.",
    )


def lease_lost(worker: str) -> Problem:
    """One attempt's worker gave no sign of life for longer than its lease."""
    return _problem(
        "worker_lost", "Worker lost", 500, f"Worker {worker} gave no sign of life for longer than its lease."
    )


def driver_lost(worker: str) -> Problem:
    """One attempt's Spark driver died, stopped answering, or was left by its cluster."""
    return _problem(
        "driver_lost", "Spark driver lost", 500, f"The Spark driver of worker {worker} died, hung or lost its cluster."
    )


def driver_ended(worker: str) -> Problem:
    """One attempt's Spark driver was ended because of another job's work; it does not count against the job."""
    return _problem(
        "driver_ended",
        "Spark driver ended",
        500,
        f"Worker {worker} ended its Spark driver, since work of another job that had ended went on in it, and handed "
        "the job back to the queue.",
    )


def handed_back(worker: str) -> Problem:
    """One attempt was given up by a worker that was told to stop; it does not count against the job."""
    return _problem(
        "handed_back", "Handed back", 500, f"Worker {worker} was stopped and handed the job back to the queue."
    )


def storage_unavailable(detail: str) -> Problem:
    """The object store or HDFS behind a data root could not be used when the job was to read it."""
    return _problem("storage_unavailable", "The store of the data cannot be used", 500, f"{detail} Submit it again.")


def internal_error(job_id: str, attempt: int) -> Problem:
    """A defect of the service; the log has the details, the client does not get them."""
    return _problem(
        "internal_error",
        "Internal error",
        500,
        f"The worker failed in a way it does not know. Its log has the details under job_id {job_id}, "
        f"attempt {attempt}.",
    )


def _problem(code: str, title: str, status: int, detail: str) -> Problem:
    return Problem(type=f"/problems/{code}", title=title, status=status, detail=detail, code=code)
