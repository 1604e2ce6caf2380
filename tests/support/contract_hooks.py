"""What Schemathesis has to know of this service beside its specification; loaded by its configuration, contract.toml.

CONTRACT_SPARED     ids of keys and workers which the run is never to end, since it goes on with them
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
"""Pydantic's codes: what is wrong with a value's form. Left out are those of quantities with a unit, since a schema
cannot bound the number in a text. Every other code is of a rule of ours."""


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Puts another id in place of one that is spared, and every other time the streaming job where it takes one."""
    if _operation(case) in _OF_STREAMS and case.meta and case.meta.generation.mode.is_positive and next(_TURN) % 2:
        case.path_parameters["job_id"] = _STREAM
    name = _ENDS.get(_operation(case))
    if name is not None and str(case.path_parameters.get(name)) in _SPARED:
        case.path_parameters[name] = "a" * 16


@schemathesis.hook
def filter_case(context: HookContext, case: Case[Any]) -> bool:
    """Leaves out most of the systematic bodies of explanations: a submission has the same, and a plan takes a worker
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
    """A body of rows: what is no text goes as JSON."""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")


@schemathesis.check
def form_is_as_declared(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    """What the specification admits is never refused for its form, only for what it means."""
    if response.status_code != 422 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    wrong = [each for each in response.json()["errors"] if each["code"] in _FORM and not _is_open(case, each)]
    if wrong:
        raise AssertionError(f"The specification admits it, and it is refused for its form: {wrong}")


def _operation(case: Case[Any]) -> str:
    return str(case.operation.definition.raw["operationId"])


def _is_open(case: Case[Any], issue: dict[str, Any]) -> bool:
    """Whether it is about a setting under one of its other keys, of whose values the specification tells nothing."""
    settings = case.body.get("settings", case.body) if isinstance(case.body, dict) else None
    return isinstance(settings, dict) and any("." in key for key in settings)
