"""What was measured of a stream, as clients see it: figures and backlog apart, which are stored together."""

from __future__ import annotations

from typing import Any

from service.store.streams import BACKLOG


def apart(stored: dict[str, Any] | None) -> dict[str, Any]:
    """The fields `metrics` and `backlog`; either is None where nothing was measured.

    What an earlier release stored gets the names of today: clients read one shape, however old a mini-batch is.
    """
    figures = {name: value for name, value in (stored or {}).items() if name != BACKLOG}
    return {"metrics": _of_today(figures) if figures else None, "backlog": (stored or {}).get(BACKLOG)}


def _of_today(figures: dict[str, Any]) -> dict[str, Any]:
    state = [_state_of_today(one) for one in figures.get("state", ())]
    return {"busy": None, **figures, "state": state}


def _state_of_today(told: dict[str, Any]) -> dict[str, Any]:
    """What was called `bytes` is what the stores hold in memory; the size of the state was not told."""
    kept = {name: value for name, value in told.items() if name != "bytes"}
    memory = {"memory_bytes": told["bytes"]} if "bytes" in told else {}
    return {"state_bytes": None, **memory, **kept}
