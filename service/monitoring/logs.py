"""The format of the log, and the list of log events for operators.

Logs are structured, on standard error: a JSON object per line, or coloured text for a terminal. `event` is the event's
name, `level` its level, `timestamp` the time; other fields (`job_id`, `attempt`, `request_id`, `error`) say where and
why. Names of listed events do not change between versions, like those of metrics. `make lint` checks the list.

Values that are bound with `structlog.contextvars.bound_contextvars`, such as `request_id`, are in every line that is
logged meanwhile, including those of libraries.
"""

from __future__ import annotations

import io
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from service.config.settings import LogSettings

_NOISY = {
    # Requests are logged by the API itself, with their ids.
    "uvicorn.access": logging.WARNING,
    "py4j": logging.WARNING,
    # The worker logs why a mini-batch failed, with the traceback if needed.
    "py4j.clientserver": logging.CRITICAL,
    "alembic": logging.WARNING,
    "httpx": logging.WARNING,
    "sqlglot": logging.ERROR,
}
_REROUTED = ("uvicorn", "uvicorn.error", "uvicorn.access", "celery", "celery.task", "celery.redirected", "kombu")
_TRACEBACKS = frozenset({"exception", "stack", "exc_info"})


def _escaped(*ranges: tuple[int, int]) -> dict[int, str]:
    return {code: f"\\u{code:04x}" for first, last in ranges for code in range(first, last + 1)}


# Texts of clients are in the log. They must not begin a new line or change the order of characters.
_INVISIBLE = _escaped((0x7F, 0x9F), (0x2028, 0x202E), (0x2066, 0x2069))
_CONTROLS = _escaped((0x00, 0x1F)) | _INVISIBLE
_CONTROLS_IN_LINES = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\n\t"}


@dataclass(frozen=True)
class LogEvent:
    """A log event. `process` is the process that writes it: `API`, `worker` or `both`."""

    name: str
    level: str
    process: str
    meaning: str


LOG_EVENTS = (
    LogEvent("request_failed", "error", "API", "A request got a 500 because of an internal error; with the traceback."),
    LogEvent(
        "database_unavailable", "error", "API", "A request got a 503 because the database did not answer in time."
    ),
    LogEvent(
        "streams_directory_unusable",
        "error",
        "API",
        "Posted rows got a 503 because their directory (`EVENKEEL_DATA_STREAMS`) cannot be written.",
    ),
    LogEvent(
        "message_dropped", "error", "both", "A message of the broker could not be read; its job is announced again."
    ),
    LogEvent(
        "spark_unavailable",
        "error",
        "worker",
        "Spark does not start or has lost its cluster; the worker claims no job until it is available.",
    ),
    LogEvent(
        "spark_driver_lost",
        "error",
        "worker",
        "The driver's JVM died, hung or lost its cluster; its jobs are handed back and a new driver starts.",
    ),
    LogEvent(
        "spark_driver_stuck",
        "error",
        "worker",
        "Work that was cancelled or ran out of time did not end, so its driver was ended; its other jobs are handed "
        "back without losing an attempt, and a new driver starts.",
    ),
    LogEvent(
        "worker_blocked_by_plannings",
        "error",
        "worker",
        "The worker has reached its limit of abandoned plannings, or one has not ended after more than ten times "
        "`EVENKEEL_SPARK_TASK_KILL_SECONDS`. The worker claims no more jobs, and ends when its jobs have ended.",
    ),
    LogEvent(
        "isolated_driver_lost",
        "error",
        "worker",
        "The process of a job with `isolation: driver` ended, or was killed; another attempt follows.",
    ),
    LogEvent(
        "isolated_driver_silent",
        "error",
        "worker",
        "Such a process sent nothing for the time of a lease and was ended; another attempt follows.",
    ),
    LogEvent(
        "isolated_driver_not_started",
        "error",
        "worker",
        "The system refused to start such a process; another attempt follows.",
    ),
    LogEvent(
        "isolated_driver_not_understood",
        "error",
        "worker",
        "Such a process sent what this version cannot read, and was ended; another attempt follows.",
    ),
    LogEvent("spark_start_killed", "error", "worker", "Spark took too long to start and was ended."),
    LogEvent("attempt_failed", "error", "worker", "An attempt ended because of an internal error; with the traceback."),
    LogEvent(
        "publication_impossible",
        "error",
        "worker",
        "The outcome of a job could not be stored although the database is available; the job is FAILED.",
    ),
    LogEvent(
        "stream_end_not_published",
        "error",
        "worker",
        "The end of a stream could not be stored; its lease expires, and another attempt follows.",
    ),
    LogEvent("worker_exit_forced", "error", "worker", "A stopping worker had threads that did not end."),
    LogEvent("worker_metrics_not_served", "error", "worker", "The port of the worker's metrics is in use."),
    LogEvent(
        "posted_rows_shown",
        "warning",
        "both",
        "Accepted rows whose file was hidden because a process ended can be read now.",
    ),
    LogEvent("posted_rows_not_shown", "warning", "both", "Accepted rows could not be made visible; it is tried again."),
    LogEvent("broker_unreachable", "warning", "both", "A message was not sent; the sweeper sends it later."),
    LogEvent("scraped_without_database", "warning", "API", "The database was unavailable during a scrape."),
    LogEvent(
        "planning_abandoned",
        "warning",
        "worker",
        "A job ended during its planning, and the planning thread did not end; its result is dropped.",
    ),
    LogEvent("database_lost", "warning", "worker", "An attempt was given up because the database was unavailable."),
    LogEvent(
        "attempt_lost_its_lease",
        "warning",
        "worker",
        "An attempt was ended because another worker may have claimed its job.",
    ),
    LogEvent(
        "attempt_handed_back",
        "warning",
        "worker",
        "An attempt was given up so that another one can follow, with the reason.",
    ),
    LogEvent(
        "hand_back_failed",
        "warning",
        "worker",
        "A job could not be handed back; another attempt follows when its lease expires.",
    ),
    LogEvent("publication_refused", "warning", "worker", "A worker tried to end a job whose claim it had lost."),
    LogEvent("lost_attempt_recovered", "warning", "worker", "The sweeper queued the job of a lost worker again."),
    LogEvent(
        "cancelled_job_ended",
        "warning",
        "API",
        "A job that was to be cancelled lost its worker, and no worker has swept since: it is CANCELLED.",
    ),
    LogEvent(
        "lost_job_ended", "warning", "worker", "The sweeper ended the job of a lost worker, which has no attempts left."
    ),
    LogEvent(
        "results_of_another_installation",
        "warning",
        "both",
        "The results directory has the id of another database: none of its files is removed.",
    ),
    LogEvent("files_not_removed", "warning", "both", "Files of a removed job could not be deleted, with the reason."),
    LogEvent(
        "dimension_not_taken",
        "warning",
        "worker",
        "A lookup table of a stream has changed and cannot be read (`code` has the reason); the stream keeps the "
        "previous version.",
    ),
    LogEvent("loop_failed", "warning", "worker", "A background thread (`loop`) failed, and continues after a pause."),
    LogEvent("request", "info", "API", "A request was answered, with status and milliseconds."),
    LogEvent(
        "audit",
        "info",
        "API",
        "A change was made or requested, or refused for lack of a key: `tenant` and `key_id` identify the client, "
        "`client` its address, `method`, `path` and `status` the request.",
    ),
    LogEvent("worker_started", "info", "worker", "The worker listens for jobs."),
    LogEvent(
        "worker_draining",
        "info",
        "worker",
        "The worker drains by request, not because of a signal, and claims no more jobs.",
    ),
    LogEvent("worker_drained", "info", "worker", "The worker was drained, has no jobs, and ends."),
    LogEvent("worker_stopped", "info", "worker", "The worker has ended in order."),
    LogEvent("spark_started", "info", "worker", "The driver has started."),
    LogEvent("attempt_started", "info", "worker", "The worker claimed a job."),
    LogEvent(
        "task_preempted",
        "info",
        "worker",
        "A task of the tenant `of` was ended, and runs again later, since the tenant `waiting` had no slot.",
    ),
    LogEvent("attempt_ended", "info", "worker", "The worker published the end of a job, with status and rows."),
    LogEvent("dimension_taken", "info", "worker", "A lookup table of a stream was copied as a new version."),
    LogEvent(
        "query_failed",
        "info",
        "worker",
        "A job FAILED because of its query or data, with the code that its client sees.",
    ),
    LogEvent("retention_applied", "info", "worker", "Old jobs and results were removed, with their numbers."),
)
"""All of them, by severity, the most severe first."""


def configure_logging(settings: LogSettings) -> None:
    """Makes structlog and the standard library's loggers use one format. Can be called again."""
    handler = _StandardErrorHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared_processors(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level)
    for name in _REROUTED:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name, level in _NOISY.items():
        logging.getLogger(name).setLevel(max(level, root.level))
    # Without records of the standard library, which cost more than all the rest of a line.
    structlog.configure(
        processors=[*_shared_processors(), *_renderers(settings)],
        logger_factory=partial(_LineLogger, handler),
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        cache_logger_on_first_use=False,
    )


class _StandardErrorHandler(logging.Handler):
    """Writes to the current `sys.stderr`, even after it has been replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record as one line."""
        try:
            self.write(self.format(record))
        except (OSError, ValueError):
            self.handleError(record)

    def write(self, line: str) -> None:
        """Writes a line that no other thread's line interrupts. Raises OSError and ValueError."""
        self.acquire()
        try:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        finally:
            self.release()


class _LineLogger:
    """Writes the lines of structlog. `name` is the module that logs."""

    def __init__(self, handler: _StandardErrorHandler, name: str = "root") -> None:
        self.name = name
        self._handler = handler

    def _write(self, line: str) -> None:
        # Nobody reads a standard error that is closed or full, so there is no place to report that.
        with suppress(OSError, ValueError):
            self._handler.write(line)

    debug = info = warning = error = critical = _write


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _drop_color_message,
    ]


def _renderers(settings: LogSettings) -> list[Processor]:
    if settings.format == "console":
        # Not structlog's own tracebacks, which show the values of local variables, secrets included, and take seconds.
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback)
        return [_escape_all_controls, renderer]
    return [
        structlog.processors.format_exc_info,
        _escape_invisible,
        structlog.processors.JSONRenderer(ensure_ascii=False),
    ]


def _write_traceback(sio: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Writes a plain traceback without control characters of a terminal, which texts of clients may contain."""
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exc_info)
    sio.write(plain.getvalue().translate(_CONTROLS_IN_LINES))


def _escape_invisible(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escapes what JSON does not escape itself."""
    return {name: _translated(value, _INVISIBLE) for name, value in event.items()}


def _escape_all_controls(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: value if name in _TRACEBACKS else _translated(value, _CONTROLS) for name, value in event.items()}


def _translated(value: object, table: dict[int, str]) -> object:
    # Nearly all texts are printable, which is quickly known.
    return value.translate(table) if isinstance(value, str) and not value.isprintable() else value


def _drop_color_message(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # uvicorn repeats its message with terminal colours.
    event.pop("color_message", None)
    return event
