"""Structured logs on standard error: one JSON object a line, or coloured text for people.

Context such as `request_id`, `job_id` and `attempt` is bound with `structlog.contextvars.bound_contextvars` and appears
in every line written below it, those of libraries included.
"""

from __future__ import annotations

import io
import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from service.settings import LogSettings

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
