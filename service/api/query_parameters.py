"""Refuses requests with query parameters that their operation does not declare.

A parameter that is ignored silently gives a wrong answer: `?limit=2` would return a whole page, and
`?state=FAILED` jobs in every state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from service.api.problems import json_pointer
from service.contract.problems import Issue, SpecError, did_you_mean, nearest_names

_MAX_ISSUES = 20
_MAX_NAME_SHOWN = 100
_SYNONYMS: Mapping[str, Sequence[str]] = {
    "page_size": ("limit", "size", "count", "per_page", "max_results", "top"),
    "cursor": ("offset", "page", "skip", "start", "next", "next_cursor", "page_token", "continuation"),
    "status": ("state", "states", "statuses"),
    "name": ("name_prefix", "prefix", "q", "search"),
    "id_prefix": ("id", "ids", "job_id"),
    "submitted_after": ("since", "after", "from"),
    "submitted_before": ("until", "before", "to"),
    "batch_id": ("batch", "id", "idempotency_key"),
    "slots": ("tasks", "cores", "parallelism"),
    "prefer": ("wait", "timeout"),
    "accept": ("format", "media_type"),
}
"""Usual names of other services for the parameters and headers of this one."""
_HEADER_EXAMPLES = {"prefer": "Prefer: wait=45"}


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises SpecError `unknown_query_parameter` unless the request's operation declares all its query parameters."""
    names = list(request.query_params)
    route = request.scope.get("route")
    if not names or not isinstance(route, APIRoute):
        return
    allowed, headers = _declared(route.dependant)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        advised = {header: _HEADER_EXAMPLES.get(header, f"{header.title()}: …") for header in headers}
        media_types = _media_types(route)
        if media_types:
            advised["accept"] = f"Accept: {media_types[0]}"
        raise SpecError([_issue(name, allowed, advised) for name in unknown[:_MAX_ISSUES]])


def _declared(dependant: Dependant) -> tuple[list[str], list[str]]:
    """Returns the names of the query parameters and of the headers that an operation and its dependencies declare."""
    parameters = [field.alias for field in dependant.query_params]
    headers = [field.alias for field in dependant.header_params]
    for dependency in dependant.dependencies:
        of_dependency, its_headers = _declared(dependency)
        parameters += of_dependency
        headers += its_headers
    return parameters, headers


def _media_types(route: APIRoute) -> list[str]:
    """Returns the media types other than JSON that an operation can answer with."""
    return list(route.responses.get(HTTPStatus.OK, {}).get("content", ()))


def _issue(name: str, allowed: Sequence[str], headers: Mapping[str, str]) -> Issue:
    shown = name[:_MAX_NAME_SHOWN]
    folded = shown.casefold().replace("-", "_")
    meant = tuple(parameter for parameter in allowed if folded in _SYNONYMS.get(parameter, ()))
    header = next((example for one, example in headers.items() if folded in _names_of(one)), None)
    if header is not None and not meant:
        advice = f" Send the header '{header}' instead."
    else:
        meant = meant or nearest_names(folded, allowed)
        advice = did_you_mean(meant)
    ending = f"Allowed are {', '.join(sorted(allowed))}." if allowed else "It has no query parameters."
    return Issue(
        code="unknown_query_parameter",
        detail=f"There is no query parameter '{shown}' here.{advice} {ending}",
        pointer=json_pointer(["query", shown]),
        suggestions=meant,
    )


def _names_of(header: str) -> tuple[str, ...]:
    name = header.casefold().replace("-", "_")
    return (name, *_SYNONYMS.get(name, ()))
