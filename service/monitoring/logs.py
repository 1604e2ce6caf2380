"""The log events that an operator should know: their names are kept from version to version, as metrics' are.

A line of the log is a JSON object: `event` is the name, `level` the level, `timestamp` the time; what else is in it
(`job_id`, `attempt`, `request_id`, `error`) tells where and why. A test keeps this list true.

Structured logs on standard error: one JSON object a line, or coloured text for people.

Context such as `request_id`, `job_id` and `attempt` is bound with `structlog.contextvars.bound_contextvars` and appears
in every line written below it, those of libraries included.
"""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import dataclass
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from service.config.settings import LogSettings


@dataclass(frozen=True)
class LogEvent:
    """One event. `process` is the one that writes it: `API`, `worker` or `both`."""

    name: str
    level: str
    process: str
    meaning: str


LOG_EVENTS = (
    LogEvent("request_failed", "error", "API", "A request was answered 500 by mistake of ours; with the traceback."),
    LogEvent(
        "database_unavailable", "error", "API", "A request was answered 503: the database did not answer in time."
    ),
    LogEvent(
        "streams_directory_unusable",
        "error",
        "API",
        "Posted rows were answered 503: their directory (`EVENKEEL_DATA_STREAMS`) cannot be written.",
    ),
    LogEvent(
        "message_dropped", "error", "both", "A message of the broker could not be read; its job is rung for again."
    ),
    LogEvent(
        "spark_unavailable",
        "error",
        "worker",
        "Spark does not start or lost its cluster; no job is taken until it is back.",
    ),
    LogEvent(
        "spark_driver_lost",
        "error",
        "worker",
        "The driver's JVM died, hung or lost its cluster; its jobs are handed back, a new one is started.",
    ),
    LogEvent(
        "spark_driver_stuck",
        "error",
        "worker",
        "Work that was cancelled, or ran out of time, did not end, and its driver was ended; the jobs beside it are "
        "handed back, no attempt of theirs spent, and a new one is started.",
    ),
    LogEvent(
        "worker_blocked_by_plannings",
        "error",
        "worker",
        "The worker has reached its limit of abandoned plannings, or one has not ended after more than ten times "
        "`EVENKEEL_SPARK_TASK_KILL_SECONDS`. The worker takes no further job, and ends when its jobs have ended.",
    ),
    LogEvent("spark_start_killed", "error", "worker", "Spark took too long to start and was ended."),
    LogEvent("attempt_failed", "error", "worker", "A job ended by mistake of ours; with the traceback."),
    LogEvent(
        "publication_impossible",
        "error",
        "worker",
        "What became of a job could not be stored, and not for want of the database; the job is FAILED.",
    ),
    LogEvent(
        "stream_end_not_published",
        "error",
        "worker",
        "What became of a stream could not be stored; its lease runs out, and another attempt follows.",
    ),
    LogEvent("worker_exit_forced", "error", "worker", "A worker that was told to stop had threads that did not end."),
    LogEvent("worker_metrics_not_served", "error", "worker", "Its metrics' port is taken."),
    LogEvent(
        "posted_rows_shown",
        "warning",
        "both",
        "Accepted rows that a process had left hidden when it ended can be read now.",
    ),
    LogEvent(
        "posted_rows_not_shown", "warning", "both", "Accepted rows could not be shown to readers; it is tried again."
    ),
    LogEvent("broker_unreachable", "warning", "both", "A message was not sent; the sweeper sends it later."),
    LogEvent("scraped_without_database", "warning", "API", "A scrape found no database."),
    LogEvent(
        "planning_abandoned",
        "warning",
        "worker",
        "A job ended while it was planned, and the thread that plans it did not end; its result is dropped.",
    ),
    LogEvent("database_lost", "warning", "worker", "An attempt was given up since the database was away."),
    LogEvent(
        "attempt_lost_its_lease", "warning", "worker", "An attempt was ended: another worker may have its job by now."
    ),
    LogEvent("attempt_handed_back", "warning", "worker", "An attempt was given up for another one, with the reason."),
    LogEvent(
        "hand_back_failed",
        "warning",
        "worker",
        "A job could not be given back; it is tried again when its lease is over.",
    ),
    LogEvent(
        "publication_refused", "warning", "worker", "A late worker wanted to end a job that is no longer its own."
    ),
    LogEvent("lost_attempt_recovered", "warning", "worker", "The sweeper put a lost worker's job back into its queue."),
    LogEvent(
        "cancelled_job_ended",
        "warning",
        "API",
        "A job that was to be cancelled has lost its worker, and no other one has swept: it is CANCELLED.",
    ),
    LogEvent("lost_job_ended", "warning", "worker", "The sweeper ended a lost worker's job: its attempts are spent."),
    LogEvent(
        "results_of_another_installation",
        "warning",
        "both",
        "The results directory bears the id of another database: no file in it is removed.",
    ),
    LogEvent("files_not_removed", "warning", "both", "Files of a job that is gone stay behind, with the reason."),
    LogEvent(
        "dimension_not_taken",
        "warning",
        "worker",
        "What a table that a stream follows has become cannot be taken (`code` tells why): it goes on with the version "
        "before.",
    ),
    LogEvent("loop_failed", "warning", "worker", "A background thread (`loop`) failed, and goes on after a pause."),
    LogEvent("request", "info", "API", "A request was answered, with status and milliseconds."),
    LogEvent(
        "audit",
        "info",
        "API",
        "Something was changed, or asked to be, or refused for want of a key: `tenant` and `key_id` tell who, `client` "
        "from where, `method`, `path` and `status` what.",
    ),
    LogEvent("worker_started", "info", "worker", "It listens for jobs."),
    LogEvent("worker_draining", "info", "worker", "It was told to drain, not by a signal, and takes no more jobs."),
    LogEvent("worker_drained", "info", "worker", "It was told to drain, has no job any more, and ends."),
    LogEvent("worker_stopped", "info", "worker", "It has taken its leave."),
    LogEvent("spark_started", "info", "worker", "Its driver is up."),
    LogEvent("attempt_started", "info", "worker", "It claimed a job."),
    LogEvent("attempt_ended", "info", "worker", "It published a job's end, with status and rows."),
    LogEvent("dimension_taken", "info", "worker", "A table that a stream follows was copied as a new version."),
    LogEvent("query_failed", "info", "worker", "A job FAILED by its own doing, with the code that its client sees."),
    LogEvent("retention_applied", "info", "worker", "Old jobs and results were removed, with their numbers."),
)
"""The worst first."""


_NOISY = {
    # Requests are logged by the API itself, with their ids.
    "uvicorn.access": logging.WARNING,
    "py4j": logging.WARNING,
    # What ended a mini-batch is told by the worker, as the job's problem, with the stack where that is needed.
    "py4j.clientserver": logging.CRITICAL,
    "alembic": logging.WARNING,
    "httpx": logging.WARNING,
    "sqlglot": logging.ERROR,
}
_REROUTED = ("uvicorn", "uvicorn.error", "uvicorn.access", "celery", "celery.task", "celery.redirected", "kombu")


def configure_logging(settings: LogSettings) -> None:
    """Routes structlog and the standard library's loggers through one format. May be called again."""
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
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


class _StandardErrorHandler(logging.Handler):
    """Writes to what standard error is at the moment, even after somebody has replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record as one line."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)


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
        # Not its own tracebacks: they show what local variables hold, secrets among it, and take seconds to draw.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_traceback_of_one_piece
        )
        return [_escape_all_controls, renderer]
    return [
        structlog.processors.format_exc_info,
        _escape_unseen,
        structlog.processors.JSONRenderer(ensure_ascii=False),
    ]


def _traceback_of_one_piece(sio: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """A plain traceback. What its messages hold of callers' texts neither moves a terminal's cursor nor colours it."""
    drawn = io.StringIO()
    structlog.dev.plain_traceback(drawn, exc_info)
    sio.write(drawn.getvalue().translate(_CONTROLS_OF_LINES))


def _escaped(*ranges: tuple[int, int]) -> dict[int, str]:
    return {code: f"\\u{code:04x}" for first, last in ranges for code in range(first, last + 1)}


# What callers send is in the log: it must neither begin a line of its own nor turn the order of characters round.
_UNSEEN = _escaped((0x7F, 0x9F), (0x2028, 0x202E), (0x2066, 0x2069))
_CONTROLS = _escaped((0x00, 0x1F)) | _UNSEEN
_CONTROLS_OF_LINES = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\n\t"}
_OURS = frozenset({"exception", "stack", "exc_info"})


def _escape_unseen(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """JSON escapes the other control characters itself."""
    return {name: _translated(value, _UNSEEN) for name, value in event.items()}


def _escape_all_controls(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: value if name in _OURS else _translated(value, _CONTROLS) for name, value in event.items()}


def _translated(value: object, table: dict[int, str]) -> object:
    return value.translate(table) if isinstance(value, str) else value


def _drop_color_message(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # uvicorn repeats its message with terminal colours.
    event.pop("color_message", None)
    return event
