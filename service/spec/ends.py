"""The problems with which a job or an attempt ends other than by an error in the job itself."""

from __future__ import annotations

from service.spec.problem import Problem


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
