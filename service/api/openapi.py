"""The OpenAPI document: what FastAPI derives from the routes, adapted to client generators, with short examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from service import __version__
from service.api.compact_schemas import compact_schemas
from service.api.examples import add_examples
from service.api.headers import HEADERS
from service.api.shared_components import operations_of, share_parameters, share_problems
from service.contract.options import declared_settings
from service.contract.problems import Problem

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
    """Returns the OpenAPI document of the application, with short examples, and with everything shared that is the same
    in several places.
    """
    document = complete_specification(app)
    schemas, operations = document["components"]["schemas"], list(operations_of(document))
    compact_schemas(document)
    for operation in operations:
        _remove_repetitions(operation)
    add_examples(operations, schemas)
    share_problems(document)
    share_parameters(document)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document


def complete_specification(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document with all responses, parameters and schemas in full where they are used, and without
    examples: the documentation is generated from it.
    """
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
    schemas["Problem"] = problem
    _allow_setting_aliases(schemas["JobSettings"])
    document["components"]["headers"] = HEADERS
    for operation in operations_of(document):
        _document_authentication(operation)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    return document


def _remove_repetitions(operation: dict[str, Any]) -> None:
    """Sorts the responses by status, and removes `required: false` of parameters, the default."""
    operation["responses"] = dict(sorted(operation["responses"].items()))
    for parameter in operation.get("parameters", ()):
        if not parameter["required"]:
            del parameter["required"]


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
    keys = [key.split(".") for key in (*settings["properties"], *others)]
    settings["propertyNames"] = {"pattern": f"^({_any_of(keys)})$"}
    settings["additionalProperties"] = {"description": "A setting under its dotted key or under its Flink key."}


def _any_of(keys: Sequence[Sequence[str]]) -> str:
    """Returns a pattern of the keys, given by their parts between dots, in which each beginning stands once."""
    by_first: dict[str, list[Sequence[str]]] = {}
    for first, *rest in keys:
        by_first.setdefault(first, []).append(rest)
    found = []
    for first, endings in by_first.items():
        longer = [ending for ending in endings if ending]
        inner = rf"\.({_any_of(longer)})" if longer else ""
        found.append(f"{first}({inner})?" if longer and len(longer) < len(endings) else first + inner)
    return "|".join(found)
