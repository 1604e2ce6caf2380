"""What openapi.yaml says that clients can do and may run into."""

from __future__ import annotations

from typing import Any

import yaml

from tests.clients.generated import ROOT


def operations() -> dict[str, dict[str, Any]]:
    """Every operation by its id."""
    document = yaml.safe_load((ROOT / "openapi.yaml").read_text(encoding="utf-8"))
    return {each["operationId"]: each for item in document["paths"].values() for each in item.values()}


def documented() -> set[str]:
    """Every code that the specification shows a problem of."""
    return {
        code
        for operation in operations().values()
        for response in operation["responses"].values()
        for code in response.get("content", {}).get("application/problem+json", {}).get("examples", {})
    }
