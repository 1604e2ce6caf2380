"""Every error response of the API as a problem (RFC 9457), and its documentation in the OpenAPI document.

`add_problem_handlers` covers what routes raise; middleware answers with `service_error_response` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

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

from service.api.headers import CHALLENGE, RETRY_AFTER
from service.api.shared_components import PROBLEM_MEDIA_TYPE
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
from service.contract.problems import Issue, Problem, SpecError, did_you_mean, nearest_names, problem_of_spec_error
from service.contract.read_options import ReadOptions, option_name
from service.contract.validation_texts import text_of
from service.jobs.explain_job import ExplainFailedError
from service.store.session import CommitUnknownError, fault_of, first_line

PROBLEM_REF = "#/components/schemas/Problem"
EVERYWHERE = (HostNotAllowedError, OriginNotAllowedError, InternalError, DatabaseUnavailableError, StoppingError)
"""The errors that any request may cause."""
BODY_ERRORS = (
    MalformedJsonError,
    BodyTooLargeError,
    UnsupportedMediaTypeError,
    NestingTooDeepError,
    DuplicateKeyError,
)
"""The errors that `service.api.request_bodies` raises for a JSON body."""

_log = structlog.get_logger(__name__)
_PYDANTIC_CODES = frozenset(get_args(ErrorType))
_UNCHANGED = "The database did not answer in time. Nothing was changed; try again."
_COMMIT_UNKNOWN = (
    "The connection to the database was lost during the commit, and it is not known whether the change was stored. "
    "Check before you try again; a submission with an Idempotency-Key can simply be repeated."
)
_LENGTH_OF_TABLE_FIELD = len(("tables", "name", "field"))
_MAX_SUGGESTIONS = 20
"""Suggestions are computed only for this many unknown fields of a request."""
_MAX_NAME_SHOWN = 100
_EXAMPLES: Mapping[tuple[object, ...], str] = {
    ("tables", 1): ' It has each table by its name: {"f": {"path": "flights/"}}.',
    ("tables", 2): ' It has the path of the table: {"path": "flights/"}.',
    ("query", 1): " Write SQL into 'sql'.",
}
"""What to write into fields that are no objects, by the first part and the length of their path."""
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


_HEADERS: Mapping[int, Mapping[str, Any]] = {401: CHALLENGE, 429: RETRY_AFTER, 503: RETRY_AFTER}
"""Additional headers of problems, by status."""
_UNKNOWN_COLUMN = (
    "The query names a column that its table does not have. Other errors in a job have this status and their own codes."
)


def request_id_of(scope: Scope) -> str | None:
    """Returns the request's id: that of its `X-Request-Id`, or a generated one."""
    state: Mapping[str, Any] = scope.get("state", {})
    return state.get("request_id")


def problem_response(problem: Problem, scope: Scope, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the response with a problem, to which path and request id are added."""
    complete = problem.model_copy(update={"instance": scope["path"], "request_id": request_id_of(scope)})
    # A path or a key may contain half of a surrogate pair, which cannot be encoded in UTF-8.
    body = complete.model_dump_json(exclude_none=True, ensure_ascii=True).encode("utf-8", "replace")
    return Response(body, complete.status, dict(headers or {}), PROBLEM_MEDIA_TYPE)


def service_error_response(error: ServiceError, scope: Scope) -> Response:
    """Returns the response to a request that was refused."""
    problem = Problem.of(error.code, error.status, str(error), title=error.title, errors=error.issues)
    return problem_response(problem, scope, error.headers)


def internal_error_response(scope: Scope) -> Response:
    """Returns the response to an unexpected error. The log has the details; the client gets the request id."""
    detail = "An unexpected error occurred in the service. Its log has the details under the request id."
    return service_error_response(InternalError(detail), scope)


def add_problem_handlers(app: FastAPI) -> None:
    """Registers handlers that turn every exception of a route into a problem."""

    @app.exception_handler(ServiceError)
    def on_service_error(request: Request, error: ServiceError) -> Response:
        return service_error_response(error, request.scope)

    @app.exception_handler(SpecError)
    def on_spec_error(request: Request, error: SpecError) -> Response:
        return problem_response(problem_of_spec_error(error), request.scope)

    @app.exception_handler(ExplainFailedError)
    def on_explain_failed(request: Request, error: ExplainFailedError) -> Response:
        return problem_response(error.problem, request.scope)

    @app.exception_handler(RequestValidationError)
    def on_invalid_request(request: Request, error: RequestValidationError) -> Response:
        return _validation_response(error, request.scope)

    @app.exception_handler(HTTPException)
    def on_http_exception(request: Request, error: HTTPException) -> Response:
        return _http_response(error, request)

    @app.exception_handler(SQLAlchemyError)
    def on_database_error(request: Request, error: SQLAlchemyError) -> Response:
        fault = fault_of(error)
        if fault is None:
            raise error  # a defect in one of the service's own statements
        # Without a traceback: during an outage, every request gets here.
        _log.error("database_unavailable", fault=fault.value, error=type(error).__name__, reason=first_line(error))
        detail = _COMMIT_UNKNOWN if isinstance(error, CommitUnknownError) else _UNCHANGED
        return service_error_response(DatabaseUnavailableError(detail, retry_after_seconds=1), request.scope)


def problems(*errors: type[ServiceError], spec: bool = False) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that may raise these errors; with `spec`, also errors in the posted job.

    Does not use FastAPI's `model`, which would document `application/json`, a media type that problems do not have.
    """
    meanings: dict[int, dict[str, str]] = {}
    own: tuple[type[ServiceError], ...] = (*errors, InvalidRequestError)
    for error in own:
        meanings.setdefault(error.status, {})[error.code] = error.meaning()
    for error in EVERYWHERE:
        # FastAPI ignores the router's documentation of a status that a route documents.
        if error.status in meanings:
            meanings[error.status][error.code] = error.meaning()
    if spec:
        meanings[InvalidRequestError.status]["unknown_column"] = _UNKNOWN_COLUMN
    # Sorted, so that routes with the same errors have the same response.
    return {status: _documented(status, dict(sorted(meanings[status].items()))) for status in sorted(meanings)}


def _documented(status: int, meanings: Mapping[str, str]) -> dict[str, Any]:
    lines = [f"`{code}`: {meaning}" for code, meaning in meanings.items()]
    return {
        "description": "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0],
        **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
        "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": PROBLEM_REF}}},
    }


def _http_response(error: HTTPException, request: Request) -> Response:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return service_error_response(RouteNotFoundError("There is no such path. See /openapi.json."), request.scope)
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return service_error_response(MalformedJsonError("The body could not be read as JSON."), request.scope)
    headers, detail = dict(error.headers or {}), str(error.detail)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request))
        detail = f"The method {request.method} is not allowed for this path; use {headers['Allow']}."
    phrase = HTTPStatus(error.status_code).phrase
    problem = Problem.of(phrase.lower().replace(" ", "_"), error.status_code, detail, title=phrase)
    return problem_response(problem, request.scope, headers)


def _allowed_methods(request: Request) -> list[str]:
    """Returns all methods of the path; the framework names only those of the first route with this path."""
    app: FastAPI = request.app
    allowed = [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in app.router.routes)
    ]
    return sorted({*allowed, "HEAD"}) if "GET" in allowed else allowed


def _validation_response(error: RequestValidationError, scope: Scope) -> Response:
    details = _without_consequential_errors(error.errors())
    if details and details[0]["type"] == "json_invalid":
        position = details[0]["loc"][-1]
        reason = details[0].get("ctx", {}).get("error", "it cannot be read")
        return service_error_response(
            MalformedJsonError(f"The body is not JSON: {reason}, at character {position}."), scope
        )
    field = getattr(scope.get("route"), "body_field", None)
    body = None if field is None else field.field_info.annotation
    issues = tuple(_issue(detail, body if place < _MAX_SUGGESTIONS else None) for place, detail in enumerate(details))
    texts = [f"{issue.pointer}: {issue.detail}" if issue.pointer else issue.detail for issue in issues[:3]]
    detail = "; ".join(texts) + ("" if len(issues) <= len(texts) else "; …")
    # Pydantic's codes are for invalid values, the service's own codes for errors in the job.
    if issues[0].code in _PYDANTIC_CODES:
        return service_error_response(InvalidRequestError(detail, issues=issues), scope)
    return problem_response(Problem.of(issues[0].code, InvalidRequestError.status, detail, errors=issues), scope)


def _without_consequential_errors(details: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Removes `too_short` errors of lists that have invalid items: pydantic counts only valid items."""
    short = {tuple(detail["loc"]) for detail in details if detail["type"] == "too_short"}
    lengths = {len(place) for place in short}
    places = (tuple(detail["loc"]) for detail in details)
    with_invalid_items = {place[:length] for place in places for length in lengths if length < len(place)} & short
    return [each for each in details if each["type"] != "too_short" or tuple(each["loc"]) not in with_invalid_items]


def _issue(detail: Mapping[str, Any], body: Any) -> Issue:
    """Returns an error of pydantic as an issue, without the invalid value; `body` is the type of the request's body."""
    context = detail.get("ctx", {})
    where, *path = detail["loc"]
    is_unknown = detail["type"] == "extra_forbidden" and where == "body"
    suggestions = _similar_fields(body, path) if is_unknown else tuple(context.get("suggestions", ()))
    place = path if where == "body" else [where, *path]
    if detail["type"] == "unknown_setting" and where == "body":
        place = [*path, context["setting"]]
    return Issue(
        code=detail["type"],
        detail=_text(detail, path, suggestions),
        pointer=json_pointer(place),
        suggestions=suggestions,
    )


def _text(detail: Mapping[str, Any], path: Sequence[object], suggestions: Sequence[str]) -> str:
    """Returns the text of an issue, without pydantic's terms and the names of classes."""
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_field(path, suggestions)
        case "missing" if not path:
            return "Send a body in JSON."
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{text_of(detail)}{_EXAMPLES.get((*path[:1], len(path)), '')}"
        case _:
            return text_of(detail)


def _unknown_field(path: Sequence[object], suggestions: Sequence[str]) -> str:
    name = str(path[-1])[:_MAX_NAME_SHOWN]
    is_of_table = len(path) == _LENGTH_OF_TABLE_FIELD and path[0] == "tables"
    if is_of_table and option_name(name) in ReadOptions.model_fields:
        advice = f' Write "options": {{"{option_name(name)}": …}}.'
    else:
        advice = did_you_mean(suggestions)
    return f"There is no field '{name}' here.{advice}"


def _similar_fields(annotation: Any, path: Sequence[object]) -> tuple[str, ...]:
    """Returns the names of fields that are similar to the last part of `path`, a path in a body of type `annotation`.

    Considers the fields of all models of a union at that place.
    """
    *parents, unknown = path
    models = frozenset(_models_in(annotation))
    for part in parents:
        fields = [
            field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)
        ]
        # A key, an index, or the name of a model in a union does not change the models.
        if fields:
            models = frozenset(model for field in fields for model in _models_in(field.annotation))
    names = {field.alias or name for model in models for name, field in model.model_fields.items()}
    return nearest_names(str(unknown)[:_MAX_NAME_SHOWN], sorted(names))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def json_pointer(path: Iterable[object]) -> str:
    """Returns the JSON pointer (RFC 6901) of a path of keys and indexes."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
