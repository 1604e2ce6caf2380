"""The OpenAPI document: what FastAPI derives from the routes, adapted to client generators, with recorded examples.

    example_bodies/<operation>.json
        requests     media type -> name -> {summary, value}
        responses    status -> media type -> value
    example_bodies/problems.json
        code -> fields of a problem with that code, in addition to those of its class

`python -m tests.clients.record_examples` records the examples from a running service, on the demo's flights.
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
from service.contract.errors import ServiceError
from service.contract.job_errors import GROUPS
from service.contract.options import declared_settings
from service.contract.problems import Problem

BODIES = Path(__file__).with_name("example_bodies")
"""The directory of the examples."""


def add_examples(operation: dict[str, Any]) -> None:
    """Adds the recorded examples to an operation of an OpenAPI document; each call adds new copies."""
    recorded = recorded_examples(operation["operationId"])
    for media_type, examples in recorded.get("requests", {}).items():
        operation["requestBody"]["content"][media_type]["examples"] = examples
    for status, bodies in recorded.get("responses", {}).items():
        for media_type, value in bodies.items():
            operation["responses"][status]["content"][media_type]["example"] = value
    problems = recorded_examples("problems")
    for response in operation["responses"].values():
        for code, example in response.get("content", {}).get(MEDIA_TYPE, {}).get("examples", {}).items():
            example["value"] |= problems.get(code, {})


def recorded_examples(name: str) -> dict[str, Any]:
    """Returns the recorded examples of an operation, or of `problems`; empty if there are none."""
    path = BODIES / f"{name}.json"
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return read


TITLE = "Evenkeel"
_DESCRIPTION = """\
Runs aggregation and join jobs on a Spark cluster, mitigates skewed keys, and reports how each job was planned and run.
Every error is a problem (RFC 9457) with a stable `code`. Later versions may add fields and states: ignore unknown ones.
"""
TAGS = [
    {"name": "jobs", "description": "Submit, list, read, cancel and delete jobs; stop and resume streaming jobs."},
    {"name": "results", "description": "Read the result of a job."},
    {"name": "events", "description": "Follow a job while it runs."},
    {"name": "reports", "description": "Read a job's plan, its metrics and its hot keys."},
    {"name": "streams", "description": "Append rows over HTTP; streaming jobs read them."},
    {"name": "workers", "description": "List and drain the processes that run jobs."},
    {"name": "keys", "description": "Create, list and revoke API keys; read the caller's identity."},
    {"name": "operations", "description": "Liveness, readiness and metrics, for operators."},
]


def operation_id(route: APIRoute) -> str:
    """Returns the handler's name; generated clients name their method after it."""
    return route.name


def specification(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document of the application."""
    document = get_openapi(
        title=TITLE,
        version=__version__,
        description=_DESCRIPTION,
        routes=app.routes,
        tags=TAGS,
        servers=[{"url": "/", "description": "This service."}],
        contact={"name": "Service operator"},
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        separate_input_output_schemas=False,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, schema in problem.pop("$defs", {}).items():
        schemas.setdefault(name, schema)
    problem["properties"]["code"]["x-codes"] = _meanings_of_codes()
    schemas["Problem"] = problem
    _allow_setting_aliases(schemas["JobSettings"])
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    for item in document["paths"].values():
        for operation in item.values():
            _document_authentication(operation)
            add_examples(operation)
    return document


def _meanings_of_codes() -> dict[str, str]:
    """Returns what each code of a problem or issue means."""
    of_jobs = {one.code: one.meaning for group in GROUPS.values() for one in group}
    of_requests = {error.code: error.meaning() for error in ServiceError.with_codes()}
    return dict(sorted((of_jobs | of_requests).items()))


def _document_authentication(operation: dict[str, Any]) -> None:
    """Documents whether the operation needs an API key, and which scopes the key must have.

    FastAPI writes scopes into `security` as OAuth scopes, of which a caller would need all. Operations without a key
    get an empty `security`, to show that this is intended.
    """
    schemes = operation.setdefault("security", [])
    scopes = [scope for scheme in schemes for scopes in scheme.values() for scope in scopes]
    operation["security"] = [{name: [] for name in scheme} for scheme in schemes]
    if scopes:
        operation["x-scopes"] = scopes


def _allow_setting_aliases(settings: dict[str, Any]) -> None:
    """Documents the other accepted keys of settings: dotted keys, and Flink's current and former keys.

    Client generators ignore `patternProperties`: a generated client would silently drop such keys from a request.
    """
    others = [key for setting in declared_settings() for key in (setting.key, *setting.aliases) if "." in key]
    names = "|".join(key.replace(".", r"\.") for key in (*settings["properties"], *others))
    settings["propertyNames"] = {"pattern": f"^({names})$"}
    settings["additionalProperties"] = {"description": "A setting under its dotted key or under its Flink key."}
