"""Whether a message is one of ours. Celery ends a worker over some that are not, and the next worker, and the next."""

from __future__ import annotations

import base64
import json
from typing import Any

import structlog

RUN_JOB = "run_job"
"""Name of the task that workers register; its one argument is the job id."""

_MAX_BYTES = 64 << 10

_log = structlog.get_logger(__name__)


def is_ours(message: Any) -> bool:
    """Whether a message as a transport has it, out of its JSON, announces a job. Further arguments of a next version,
    and headers that it adds, are no fault. One that is not ours is logged, for the caller to drop."""
    try:
        fault = _fault(message)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        fault = f"it is malformed ({type(error).__name__})"
    if fault is not None:
        _log.error("message_dropped", reason=fault, message=repr(message)[:200])
    return fault is None


def _fault(message: Any) -> str | None:
    if message["content-type"] != "application/json":
        return "its content is not JSON"
    headers, properties = message["headers"], message["properties"]
    if headers["task"] != RUN_JOB:
        return "it names a task that does not exist here"
    if any(headers.get(name) is not None for name in ("eta", "expires", "group")) or not isinstance(headers["id"], str):
        return "its headers are none that Evenkeel writes"
    if not isinstance(properties["delivery_tag"], str) or not isinstance(properties["delivery_info"], dict):
        return "its properties are none that Evenkeel writes"
    if len(message["body"]) > _MAX_BYTES:
        return "it is too large"
    arguments, keywords, _ = json.loads(base64.b64decode(message["body"], validate=True))
    if not isinstance(arguments, list) or not isinstance(keywords, dict) or not isinstance(arguments[0], str):
        return "it holds no job id"
    return None
