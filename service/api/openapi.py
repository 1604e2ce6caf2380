"""The examples of the specification: requests and answers as they once went over the wire, on the demo's flights.

    example_bodies/<operation>.json
        requests     media type -> name -> {summary, value}
        responses    status -> media type -> value
    example_bodies/problems.json
        code -> what a problem of that code has beside those of its class

`python -m tests.clients.record_examples` records them again from a running service.

The specification: what the framework derives from the routes, made fit for generated clients.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from service import __version__
from service.api.problems import MEDIA_TYPE
from service.contract.options import declared_settings
from service.contract.problems import Problem

BODIES = Path(__file__).with_name("example_bodies")
"""Where the files are."""


def add_examples(operation: dict[str, Any]) -> None:
    """Puts what was recorded into an operation of an OpenAPI document: a new copy each time."""
    recorded = _read(operation["operationId"])
    for media_type, examples in recorded.get("requests", {}).items():
        operation["requestBody"]["content"][media_type]["examples"] = examples
    for status, bodies in recorded.get("responses", {}).items():
        for media_type, value in bodies.items():
            operation["responses"][status]["content"][media_type]["example"] = value
    problems = _read("problems")
    for response in operation["responses"].values():
        for code, example in response.get("content", {}).get(MEDIA_TYPE, {}).get("examples", {}).items():
            example["value"] |= problems.get(code, {})


def _read(name: str) -> dict[str, Any]:
    path = BODIES / f"{name}.json"
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return read


TITLE = "Evenkeel"
_DESCRIPTION = """\
Posts aggregation and join jobs to a Spark cluster, runs them in a way that withstands skewed keys, and tells what it
did. Every error is a problem (RFC 9457) with a stable `code`; fields and states may be added, so ignore unknown ones.
"""
TAGS = [
    {"name": "jobs", "description": "Submit, list, read, cancel and delete jobs; stop and resume streaming ones."},
    {"name": "results", "description": "Read what a job computed."},
    {"name": "events", "description": "Follow a job while it runs."},
    {"name": "reports", "description": "How a job was planned, what it took, and which keys were hot."},
    {"name": "streams", "description": "Post rows, which jobs read as they come."},
    {"name": "workers", "description": "The processes that run jobs: how they stand, and draining one."},
    {"name": "keys", "description": "API keys: make, list, revoke them; and who is asking."},
    {"name": "operations", "description": "For whoever runs the service."},
]


def operation_id(route: APIRoute) -> str:
    """The handler's name: what generated clients call the method."""
    return route.name


def specification(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the application."""
    document = get_openapi(
        title=TITLE,
        version=__version__,
        description=_DESCRIPTION,
        routes=app.routes,
        tags=TAGS,
        servers=[{"url": "/", "description": "This service."}],
        contact={"name": "Whoever runs the service that you talk to"},
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        separate_input_output_schemas=False,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, schema in problem.pop("$defs", {}).items():
        schemas.setdefault(name, schema)
    schemas["Problem"] = problem
    _take_every_spelling(schemas["JobSettings"])
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    for item in document["paths"].values():
        for operation in item.values():
            _tell_of_keys(operation)
            add_examples(operation)
    return document


def _tell_of_keys(operation: dict[str, Any]) -> None:
    """Whether the operation takes an API key, and with which scopes.

    The framework writes scopes as OAuth's, all of which a caller would need, into `security`; what is open it leaves
    out, which could be an oversight.
    """
    schemes = operation.setdefault("security", [])
    scopes = [scope for scheme in schemes for scopes in scheme.values() for scope in scopes]
    operation["security"] = [{name: [] for name in scheme} for scheme in schemes]
    if scopes:
        operation["x-scopes"] = scopes


def _take_every_spelling(settings: dict[str, Any]) -> None:
    """Tells of the other keys under which settings are accepted: dotted ones, and Flink's of both generations.

    Not as `patternProperties`, which generators of clients pass over: what they make would leave such keys out of a
    request without a word.
    """
    others = [key for setting in declared_settings() for key in (setting.key, *setting.aliases) if "." in key]
    names = "|".join(key.replace(".", r"\.") for key in (*settings["properties"], *others))
    settings["propertyNames"] = {"pattern": f"^({names})$"}
    settings["additionalProperties"] = {"description": "A setting under its dotted key or under a key of Flink's."}
