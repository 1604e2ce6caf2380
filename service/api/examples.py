"""The examples of the specification: requests and answers as they once went over the wire, on the demo's flights.

    example_bodies/<operation>.json
        requests     media type -> name -> {summary, value}
        responses    status -> media type -> value
    example_bodies/problems.json
        code -> what a problem of that code has beside those of its class

`python -m tests.clients.record_examples` records them anew from a running service.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.api.problems import MEDIA_TYPE

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
