"""Reads operations and problems from openapi.yaml."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from service.api.shared_components import codes_of
from tests.clients.generated import ROOT


@cache
def document() -> dict[str, Any]:
    """Returns the content of openapi.yaml."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "openapi.yaml").read_text(encoding="utf-8"))
    return read


def operations() -> dict[str, dict[str, Any]]:
    """Returns every operation by its id."""
    return {each["operationId"]: each for item in document()["paths"].values() for each in item.values()}


def documented() -> set[str]:
    """Returns the codes of all problems in the specification."""
    return {code for response in document()["components"]["responses"].values() for code in codes_of(response)}
