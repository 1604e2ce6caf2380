"""Moves the responses and parameters that operations of an OpenAPI document have in common to its `components`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from service.api.compact_schemas import refer

PROBLEM_MEDIA_TYPE = "application/problem+json"

_CODE = re.compile(r"^(?:- )?`(\w+)`: ", re.MULTILINE)
_NAMES = {
    ("missing_scope", "origin_not_allowed"): "forbidden",
    ("database_unavailable", "stopping"): "unavailable",
    ("database_unavailable", "stopping", "storage_unavailable"): "storage_unavailable",
    ("database_unavailable", "stopping", "storage_unavailable", "worker_unavailable"): "worker_unavailable",
    ("database_unavailable", "not_ready", "stopping"): "not_ready",
    ("duplicate_key", "invalid_request", "nesting_too_deep"): "invalid_body",
    ("duplicate_key", "invalid_request", "nesting_too_deep", "unknown_column"): "invalid_job",
    (
        "duplicate_key",
        "idempotency_key_reused",
        "invalid_request",
        "nesting_too_deep",
        "unknown_column",
    ): "invalid_submission",
}
"""The names of responses that several operations have, by the codes of their problems.

Others are named after their codes.
"""


def share_problems(document: dict[str, Any]) -> None:
    """Moves each response with problems to `components.responses`, under a name for its codes."""
    responses: dict[str, Any] = {}
    for operation in operations_of(document):
        for status, response in operation["responses"].items():
            if PROBLEM_MEDIA_TYPE in response.get("content", {}):
                codes = tuple(codes_of(response))
                name = _NAMES.get(codes, "_or_".join(codes))
                operation["responses"][status] = refer(responses, "responses", name, response)
    document["components"]["responses"] = dict(sorted(responses.items()))


def codes_of(response: dict[str, Any]) -> list[str]:
    """Returns the codes of the problems that a response documents; none if it is not a response with problems."""
    return _CODE.findall(response["description"]) if PROBLEM_MEDIA_TYPE in response.get("content", {}) else []


def share_parameters(document: dict[str, Any]) -> None:
    """Moves each parameter that several operations have to `components.parameters`, under its name."""
    parameters: dict[str, Any] = {}
    declared = [parameter for operation in operations_of(document) for parameter in operation.get("parameters", ())]
    for operation in operations_of(document):
        operation["parameters"] = [
            refer(parameters, "parameters", each["name"], each) if declared.count(each) > 1 else each
            for each in operation.get("parameters", ())
        ]
        if not operation["parameters"]:
            del operation["parameters"]
    document["components"]["parameters"] = dict(sorted(parameters.items()))


def operations_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the operations of an OpenAPI document."""
    for item in document["paths"].values():
        yield from item.values()
