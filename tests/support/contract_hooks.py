"""Hooks of Schemathesis for this service, loaded by its configuration, contract.toml.

CONTRACT_SPARED     ids of keys and workers that the run must not revoke or drain, because it needs them
"""

from __future__ import annotations

import json
import os
from itertools import count
from typing import Any, get_args

import schemathesis
from pydantic_core.core_schema import ErrorType
from schemathesis.checks import CheckContext
from schemathesis.core.transport import Response
from schemathesis.generation.case import Case
from schemathesis.generation.meta import CoveragePhaseData
from schemathesis.hooks import HookContext
from schemathesis.transport import SerializationContext

_SPARED = frozenset(os.environ["CONTRACT_SPARED"].split(","))
_ENDS = {"revoke_key": "key_id", "drain_worker": "worker_id", "cancel_job": "job_id", "delete_job": "job_id"}
_STREAM = os.environ["CONTRACT_STREAM"]
_OF_STREAMS = {"stop_job", "resume_job", "change_job_settings", "get_job_stream", "list_job_batches"}
_TURN = count()
_SEEN = count()
_KEPT = 8
_FORM = frozenset(get_args(ErrorType)) - {"greater_than_equal", "less_than_equal", "value_error"}
"""Pydantic's error codes, which concern the form of a value. Codes of quantities with a unit are excluded, because a
schema cannot limit the number in a text. All other codes are the service's own rules."""


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Replaces spared ids by another id, and every other job id by the streaming job where the operation needs one."""
    if _operation(case) in _OF_STREAMS and case.meta and case.meta.generation.mode.is_positive and next(_TURN) % 2:
        case.path_parameters["job_id"] = _STREAM
    name = _ENDS.get(_operation(case))
    if name is not None and str(case.path_parameters.get(name)) in _SPARED:
        case.path_parameters[name] = "a" * 16


@schemathesis.hook
def filter_case(context: HookContext, case: Case[Any]) -> bool:
    """Skips most of the systematic bodies of explanations: submissions have the same bodies, and a plan takes a worker
    0.2 s.
    """
    if (
        _operation(case) != "explain_job"
        or case.meta is None
        or not isinstance(case.meta.phase.data, CoveragePhaseData)
    ):
        return True
    return next(_SEEN) % _KEPT == 0


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def as_text(context: SerializationContext, value: Any) -> bytes:
    """Serializes a body of rows: text as it is, other values as JSON."""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")


@schemathesis.check
def form_is_as_declared(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    """Checks that a request that the specification allows is not refused for its form."""
    if response.status_code != 422 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    wrong = [each for each in response.json()["errors"] if each["code"] in _FORM and not _is_open(case, each)]
    if wrong:
        raise AssertionError(f"The specification allows this request, but it is refused for its form: {wrong}")


def _operation(case: Case[Any]) -> str:
    return str(case.operation.definition.raw["operationId"])


def _is_open(case: Case[Any], issue: dict[str, Any]) -> bool:
    """Whether the request has a setting under an alias, whose values the specification does not describe."""
    settings = case.body.get("settings", case.body) if isinstance(case.body, dict) else None
    return isinstance(settings, dict) and any("." in key for key in settings)
