"""Reads operations and problems from openapi.yaml."""

from __future__ import annotations

from typing import Any

import yaml

from tests.clients.generated import ROOT


def operations() -> dict[str, dict[str, Any]]:
    """Returns every operation by its id."""
    document = yaml.safe_load((ROOT / "openapi.yaml").read_text(encoding="utf-8"))
    return {each["operationId"]: each for item in document["paths"].values() for each in item.values()}


def documented() -> set[str]:
    """Returns the codes of all problems in the specification."""
    return {
        code
        for operation in operations().values()
        for response in operation["responses"].values()
        for code in response.get("content", {}).get("application/problem+json", {}).get("examples", {})
    }
