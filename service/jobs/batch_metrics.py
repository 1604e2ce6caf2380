"""What was measured of a stream, as clients see it: figures and backlog apart, which are stored together."""

from __future__ import annotations

from typing import Any

from service.store.streams import BACKLOG


def apart(stored: dict[str, Any] | None) -> dict[str, Any]:
    """The fields `metrics` and `backlog`; either is None where nothing was measured."""
    figures = {name: value for name, value in (stored or {}).items() if name != BACKLOG}
    return {"metrics": figures or None, "backlog": (stored or {}).get(BACKLOG)}
