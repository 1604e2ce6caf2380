"""The fields that were meant, maybe, by one that nobody knows.

Every error that leaves the API, as RFC 9457 problem details; and how the specification tells of them.

What may be wrong with a body of JSON before it is looked at: see `service.api.middleware`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar, get_args

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic_core.core_schema import ErrorType
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from service.contract.errors import (
    BodyTooLargeError,
    DatabaseUnavailableError,
    DuplicateKeyError,
    HostNotAllowedError,
    InternalError,
    InvalidRequestError,
    MalformedJsonError,
    NestingTooDeepError,
    OriginNotAllowedError,
    RouteNotFoundError,
    ServiceError,
    StoppingError,
    UnsupportedMediaTypeError,
)
from service.contract.job import ReadOptions
from service.contract.problems import Issue, Problem, SpecError, did_you_mean, nearest_names, problem_of_spec_error
from service.jobs.explain_job import ExplainFailedError
from service.store.session import CommitUnknownError, fault_of, first_line

_MOST_LETTERS = 100


def near_fields(annotation: Any, path: Sequence[object]) -> tuple[str, ...]:
    """The names most like the last of `path`, which leads into a body of type `annotation`: those of fields that may
    stand there, whatever the shape of what stands around.
    """
    *parents, unknown = path
    models = frozenset(_models_in(annotation))
    for part in parents:
        fields = [
            field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)
        ]
        # A key, an index, or the name of a shape leads nowhere else.
        if fields:
            models = frozenset(model for field in fields for model in _models_in(field.annotation))
    names = {field.alias or name for model in models for name, field in model.model_fields.items()}
    return nearest_names(str(unknown)[:_MOST_LETTERS], sorted(names))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


MEDIA_TYPE = "application/problem+json"
PROBLEM_REF = "#/components/schemas/Problem"

_log = structlog.get_logger(__name__)
_PYDANTIC_CODES = frozenset(get_args(ErrorType))
_E = TypeVar("_E", bound=Exception)
_UNCHANGED = "The database did not answer in time. Nothing was changed; try again."
_UNKNOWN = (
    "The database went away while it stored this, and whether it did is not known. Look before you try again; a "
    "submission with an Idempotency-Key may simply be repeated."
)
_OF_TABLE = len(("tables", "its name", "its field"))
_SUGGESTED = 20
"""Of more unknown fields than these, nobody wants to know which were meant."""
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which the same request may succeed.",
        "schema": {"type": "string"},
        "example": "5",
    }
}
_CHALLENGE = {
    "WWW-Authenticate": {
        "description": "How to show a key.",
        "schema": {"type": "string"},
        "example": 'Bearer realm="evenkeel"',
    }
}
_HEADERS: Mapping[int, Mapping[str, Any]] = {
    401: {"headers": _CHALLENGE},
    429: {"headers": _RETRY_AFTER},
    503: {"headers": _RETRY_AFTER},
}
"""What problems of these statuses carry besides."""
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


def request_id_of(scope: Scope) -> str | None:
    """The id that the request came with or was given."""
    state: Mapping[str, Any] = scope.get("state", {})
    return state.get("request_id")


EVERYWHERE = (HostNotAllowedError, OriginNotAllowedError, InternalError, DatabaseUnavailableError, StoppingError)
"""What any request may be refused with."""


def problem_response(problem: Problem, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that tells of a problem, completed with path and request id."""
    complete = problem.model_copy(update={"instance": scope["path"], "request_id": request_id_of(scope)})
    # A path or key may hold half a surrogate pair, which UTF-8 cannot.
    body = complete.model_dump_json(exclude_none=True, ensure_ascii=True).encode("utf-8", "replace")
    return Response(body, complete.status, dict(headers or {}), MEDIA_TYPE)


def service_error_response(error: ServiceError, scope: Scope) -> Response:
    """The answer that tells of a refusal."""
    return problem_response(_problem(error), scope, error.headers)


def internal_error_response(scope: Scope) -> Response:
    """The answer when the service itself failed; the log has the details, the client gets the id to ask with."""
    detail = "The service failed in a way it does not know. Its log has the details under the request id."
    return service_error_response(InternalError(detail), scope)


def add_problem_handlers(app: FastAPI) -> None:
    """Turns every exception that a handler may raise into a problem."""

    def on_service_error(request: Request, error: Exception) -> Response:
        return service_error_response(_as(ServiceError, error), request.scope)

    def on_spec_error(request: Request, error: Exception) -> Response:
        return problem_response(problem_of_spec_error(_as(SpecError, error)), request.scope)

    def on_explain_failed(request: Request, error: Exception) -> Response:
        return problem_response(_as(ExplainFailedError, error).problem, request.scope)

    def on_invalid_request(request: Request, error: Exception) -> Response:
        return _validation_response(_as(RequestValidationError, error), request.scope)

    def on_http_exception(request: Request, error: Exception) -> Response:
        return _http_response(_as(HTTPException, error), request)

    def on_database_error(request: Request, error: Exception) -> Response:
        fault = fault_of(error)
        if fault is None:
            raise error  # a statement of ours is wrong
        # Without a traceback: in an outage, every request comes by here.
        _log.error("database_unavailable", fault=fault.value, error=type(error).__name__, reason=first_line(error))
        detail = _UNKNOWN if isinstance(error, CommitUnknownError) else _UNCHANGED
        return service_error_response(DatabaseUnavailableError(detail, retry_after_seconds=1), request.scope)

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(SpecError, on_spec_error)
    app.add_exception_handler(ExplainFailedError, on_explain_failed)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(SQLAlchemyError, on_database_error)


def problems(*errors: type[ServiceError], spec: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may refuse with these errors; `spec` where a job's text may be wrong.

    Written out instead of FastAPI's `model`, which would add an `application/json` that is never sent.
    """
    titles: dict[int, dict[str, str]] = {}
    for error in errors:
        titles.setdefault(error.status, {})[error.code] = error.title
    for error in EVERYWHERE:
        # Else the codes that every route has would be lost where it has others of their status.
        if error.status in titles:
            titles[error.status].setdefault(error.code, error.title)
    invalid = titles.setdefault(422, {})
    invalid.setdefault(InvalidRequestError.code, InvalidRequestError.title)
    if spec:
        invalid.setdefault("unknown_column", "Unknown column")
    return {status: _documented(status, titles[status]) for status in sorted(titles)}


def _documented(status: int, titles: Mapping[str, str]) -> dict[str, Any]:
    examples = {
        code: {
            "value": {
                "type": f"/problems/{code}",
                "title": title,
                "status": status,
                "detail": title,
                "code": code,
            }
        }
        for code, title in titles.items()
    }
    return {
        "description": "; ".join(f"`{code}`" for code in titles),
        **_HEADERS.get(status, {}),
        "content": {MEDIA_TYPE: {"schema": {"$ref": PROBLEM_REF}, "examples": examples}},
    }


def _as(kind: type[_E], error: Exception) -> _E:
    """Starlette types every handler for `Exception`; it calls it for what it was registered for alone."""
    if not isinstance(error, kind):
        raise TypeError(f"{type(error).__name__} reached the handler of {kind.__name__}")
    return error


def _problem(error: ServiceError) -> Problem:
    return Problem(
        type=f"/problems/{error.code}",
        title=error.title,
        status=error.status,
        detail=str(error),
        code=error.code,
        errors=error.issues,
    )


def _validation_response(error: RequestValidationError, scope: Scope) -> Response:
    details = _without_consequences(error.errors())
    if details and details[0]["type"] == "json_invalid":
        position = details[0]["loc"][-1]
        reason = details[0].get("ctx", {}).get("error", "it cannot be read")
        return service_error_response(
            MalformedJsonError(f"The body is not JSON: {reason}, at character {position}."), scope
        )
    field = getattr(scope.get("route"), "body_field", None)
    body = None if field is None else field.field_info.annotation
    issues = tuple(_issue(detail, body if place < _SUGGESTED else None) for place, detail in enumerate(details))
    code = issues[0].code
    # Pydantic's own codes tell what is wrong with a value; ours what is wrong with the job.
    own = code not in _PYDANTIC_CODES
    problem = Problem(
        type=f"/problems/{code if own else InvalidRequestError.code}",
        title=code.replace("_", " ").capitalize() if own else InvalidRequestError.title,
        status=422,
        detail="; ".join(_told(issue) for issue in issues[:3]) + ("" if len(issues) <= 3 else "; …"),
        code=code if own else InvalidRequestError.code,
        errors=issues,
    )
    return problem_response(problem, scope)


def _without_consequences(details: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Pydantic counts the items that it took: a list is not too short because one of its items is wrong."""
    short = {tuple(detail["loc"]) for detail in details if detail["type"] == "too_short"}
    lengths = {len(place) for place in short}
    places = (tuple(detail["loc"]) for detail in details)
    with_wrong_items = {place[:length] for place in places for length in lengths if length < len(place)} & short
    return [each for each in details if each["type"] != "too_short" or tuple(each["loc"]) not in with_wrong_items]


def _issue(detail: Mapping[str, Any], body: Any) -> Issue:
    """One error of pydantic's, without the value that it is about; `body` is the type of the request's body."""
    context = detail.get("ctx", {})
    where, *path = detail["loc"]
    is_unknown = detail["type"] == "extra_forbidden" and where == "body"
    suggestions = near_fields(body, path) if is_unknown else tuple(context.get("suggestions", ()))
    setting = context.get("setting") if detail["type"] == "unknown_setting" else None
    return Issue(
        code=detail["type"],
        detail=_words(detail, path, suggestions),
        pointer=_pointer([*path, setting] if setting else path) if where == "body" else _pointer([where, *path]),
        suggestions=suggestions,
    )


def _words(detail: Mapping[str, Any], path: Sequence[object], suggestions: Sequence[str]) -> str:
    """What is wrong, without words that are for those who know pydantic or our classes."""
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_field(path, suggestions)
        case "model_type" | "model_attributes_type" | "dict_type":
            return "Input should be an object"
        case "value_error":
            told = str(detail["msg"]).removeprefix("Value error, ")
            return told[:1].upper() + told[1:]
        case _:
            return str(detail["msg"])


def _unknown_field(path: Sequence[object], suggestions: Sequence[str]) -> str:
    name = str(path[-1])[:100]
    is_of_table = len(path) == _OF_TABLE and path[0] == "tables"
    if is_of_table and name in ReadOptions.model_fields:
        way_out = f' Write "options": {{"{name}": …}}.'
    else:
        way_out = did_you_mean(suggestions)
    return f"There is no field '{name}' here.{way_out}"


def _pointer(path: Iterable[object]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _told(issue: Issue) -> str:
    return f"{issue.pointer}: {issue.detail}" if issue.pointer else issue.detail


def _http_response(error: HTTPException, request: Request) -> Response:
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        return service_error_response(RouteNotFoundError("Nothing has this path. See /openapi.json."), request.scope)
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return service_error_response(MalformedJsonError("The body could not be read as JSON."), request.scope)
    detail = str(error.detail)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request))
        detail = f"This path does not take {request.method}, but {headers['Allow']}."
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    problem = Problem(type=f"/problems/{code}", title=phrase, status=error.status_code, detail=detail, code=code)
    return problem_response(problem, request.scope, headers)


def _allowed_methods(request: Request) -> list[str]:
    """All methods of the path: the framework names those of the first route that has it."""
    app: FastAPI = request.app
    allowed = [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]
    return sorted({*allowed, "HEAD"}) if "GET" in allowed else allowed


BODY_ERRORS = (
    MalformedJsonError,
    BodyTooLargeError,
    UnsupportedMediaTypeError,
    NestingTooDeepError,
    DuplicateKeyError,
)
