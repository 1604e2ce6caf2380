"""Tables of the endpoints of the HTTP API, with parameters, bodies, responses, errors and recorded examples."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from docs.markdown import code, codes, sentence, table
from docs.schemas import described_type
from service.api.app import create_app
from service.api.examples import load_examples
from service.api.openapi import TAGS, complete_specification
from service.api.problems import EVERYWHERE
from service.api.shared_components import codes_of
from service.config.settings import Settings
from service.contract.errors import MissingScopeError, UnauthenticatedError

PAGES = {
    "jobs": "http-jobs.md",
    "results": "http-results.md",
    "events": "http-results.md",
    "reports": "http-results.md",
    "streams": "http-streams.md",
    "workers": "http-operations.md",
    "keys": "http-operations.md",
    "operations": "http-operations.md",
}
"""The page with the endpoints of each tag."""

_ALONE = frozenset({"jobs", "streams"})
"""Tags that have a page of their own, without headings of groups."""

_COMMON = frozenset(error.code for error in (*EVERYWHERE, UnauthenticatedError, MissingScopeError))
"""Errors that are not repeated at each endpoint."""

_LANGUAGES = {"json": "json", "ndjson": "json", "csv": "text", "plain": "text", "event-stream": "text"}
_WIDTH = 100
_MAX_LINES = 60
"""Examples with more lines are shortened."""


@dataclass(frozen=True)
class Operation:
    """One endpoint, as the OpenAPI document describes it."""

    method: str
    path: str
    document: Mapping[str, Any]

    @property
    def tag(self) -> str:
        """Its tag."""
        return str(self.document["tags"][0])

    @property
    def summary(self) -> str:
        """Its name for readers."""
        return str(self.document["summary"])

    @property
    def scopes(self) -> str:
        """The scopes that a caller's key needs."""
        if not self.document["security"]:
            return "no key"
        scopes = self.document.get("x-scopes", ())
        return codes(scopes, between=" or ") if scopes else "any"


@cache
def document() -> dict[str, Any]:
    """Returns the complete OpenAPI document of the application."""
    return complete_specification(create_app(Settings()))


@cache
def operations() -> tuple[Operation, ...]:
    """Returns all operations in the order of the document."""
    return tuple(
        Operation(method.upper(), path, one)
        for path, item in document()["paths"].items()
        for method, one in item.items()
    )


def endpoints() -> str:
    """Returns the table of all endpoints."""
    rows = [
        (
            f"`{one.method} {one.path}`",
            f"[{one.summary}]({PAGES[one.tag]}#{_slug(one.summary)})",
            one.scopes,
        )
        for tag in TAGS
        for one in operations()
        if one.tag == tag["name"]
    ]
    return table(("Endpoint", "What it does", "Scope"), rows)


def sections(tag: str) -> str:
    """Returns the sections of the endpoints of a tag."""
    return "\n\n".join(part for one in operations() if one.tag == tag for part in _section(one))


def _slug(heading: str) -> str:
    """Returns the id that MkDocs gives to the heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def _section(one: Operation) -> Iterator[str]:
    yield f"{'##' if one.tag in _ALONE else '###'} {one.summary}"
    yield f"`{one.method} {one.path}` · scope: {one.scopes} · operation id: {code(one.document['operationId'])}"
    yield sentence(one.document["description"])
    parameters = [_parameter(each) for each in one.document.get("parameters", ())]
    if parameters:
        yield table(("Parameter", "In", "Type", "Meaning"), parameters)
    body = one.document.get("requestBody")
    if body is not None:
        kinds = [
            f"{code(media_type)}: {described_type(content.get('schema', {}), document())}"
            for media_type, content in body["content"].items()
        ]
        yield f"Body{'' if body.get('required') else ' (optional)'}: {'; '.join(kinds)}."
    yield table(("Status", "Meaning", "Body", "Headers"), _responses(one))
    errors = _errors(one)
    if errors:
        yield f"Errors: {', '.join(errors)}."
    yield from _examples(str(one.document["operationId"]))


def _parameter(given: Mapping[str, Any]) -> tuple[str, str, str, str]:
    schema = given["schema"]
    default = schema.get("default")
    shown = f" Default: {code(json.dumps(default))}." if default not in (None, "", []) else ""
    required = "" if not given.get("required") or given["in"] == "path" else " Required."
    meaning = sentence(given.get("description", "")) + shown + required
    # Names of headers are in lower case in the document; they may be written in any case.
    name = given["name"].title() if given["in"] == "header" else given["name"]
    return code(name), given["in"], described_type(schema, document()), meaning


def _responses(one: Operation) -> Iterator[tuple[str, str, str, str]]:
    for status, response in sorted(one.document["responses"].items()):
        if int(status) >= 400:
            continue
        bodies = [
            f"{code(media_type)}"
            + (f": {shown}" if (shown := described_type(content.get("schema", {}), document())) else "")
            for media_type, content in response.get("content", {}).items()
        ]
        meaning = response["description"].replace("Successful Response", "The request succeeded.")
        yield status, sentence(meaning), "<br>".join(bodies), codes(response.get("headers", ()))


def _errors(one: Operation) -> list[str]:
    return [
        f"[{code(found)}](errors.md#{found}) ({status})"
        for status, response in sorted(one.document["responses"].items())
        if int(status) >= 400
        for found in codes_of(response)
        if found not in _COMMON
    ]


def _examples(operation_id: str) -> Iterator[str]:
    recorded = load_examples()["operations"].get(operation_id, {})
    for media_type, examples in recorded.get("requests", {}).items():
        for one in examples.values():
            yield _example(f"Body: {one.get('summary', media_type)}", media_type, one["value"], operation_id)
    for status, bodies in recorded.get("responses", {}).items():
        for media_type, value in bodies.items():
            yield _example(f"Response {status}, {media_type}", media_type, value)


def _example(title: str, media_type: str, value: Any, operation_id: str = "") -> str:
    kind = re.split(r"[/+]", media_type)[-1].removeprefix("x-")
    language = _LANGUAGES.get(kind, "json")
    text = value.strip() if isinstance(value, str) else compact(value)
    if not isinstance(value, str) and text.count("\n") > _MAX_LINES:
        title, text = f"{title}, with the first item of each list only", compact(_shortened(value))
    is_job = operation_id in {"submit_job", "explain_job"}
    marker = (
        "" if language == "text" else f"<!-- {'job: valid' if is_job else 'not executed: recorded by a test'} -->\n"
    )
    block = f"{marker}```{language}\n{text}\n```"
    indented = "\n".join(f"    {line}" if line else "" for line in block.splitlines())
    return f'??? example "{title}"\n\n{indented}'


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in (value[:1] if any(isinstance(one, dict) for one in value) else value)]
    return value


def compact(value: Any, indent: int = 0, before: int = 0) -> str:
    """Returns JSON in which arrays and objects that fit into a line are in one line.

    `indent` is that of the current line, and `before` the number of characters in front of the value.
    """
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or indent + before + len(line) <= _WIDTH:
        return line
    inner = indent + 2
    if isinstance(value, dict):
        keys = ((json.dumps(key, ensure_ascii=False), item) for key, item in value.items())
        items = [f"{key}: {compact(item, inner, len(key) + 2)}" for key, item in keys]
        opening, closing = "{", "}"
    else:
        items = [compact(item, inner) for item in value]
        opening, closing = "[", "]"
    return f"{opening}\n" + ",\n".join(" " * inner + item for item in items) + f"\n{' ' * indent}{closing}"


TABLES: dict[str, Callable[[], str]] = {
    "endpoints": endpoints,
    **{f"endpoints of {tag}": partial(sections, tag) for tag in PAGES},
}
"""The tables of this module, by name."""
