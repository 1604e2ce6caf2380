"""What a stream's state looks like on disk, as far as a later run must agree with it.

Spark compares numbers and types of the columns of a state when it opens it, and reads whatever fits. Two plans may keep
different things in columns of the same types; so the layout of a state is stored with its job, and a run that would
keep another one is told before it touches anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Scan
from workers.engine.plan.stream_shape import StreamPlan
from workers.engine.plan.transform import walk_up

VERSION = 1
"""Grows when streams are run in a way that cannot go on from state that was written before by the same plan."""

_TEXT = 2
"""Grows when the same plan gets another text."""

_WORD = re.compile(r"\w+|[^\w\s()]")

_MEANINGS = {
    "version": "the release's way to run streams",
    "shape": "what the state holds",
    "streams": "the streams and their columns",
    "columns": "the columns of the result",
    "keys": "what tells groups apart",
    "plan": "the plan",
    "provider": "state.provider",
    "partitions": "state.partitions",
    "output": "output",
}


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was when the state was made."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what} was {self.before} when the state was made, and is {self.after}"


def layout_of(
    plan: StreamPlan, streams: frozenset[str], *, provider: str, partitions: int, output: str
) -> dict[str, Any]:
    """The layout as JSON values. `streams` are aliases."""
    scans = sorted({node for node in walk_up(plan.node) if isinstance(node, Scan) and node.alias in streams}, key=str)
    return {
        "version": VERSION,
        "shape": plan.shape.value,
        "streams": [
            {"table": scan.table, "columns": [f"{name} {field.type}" for field, name in scan.columns]} for scan in scans
        ],
        "columns": [f"{field.name} {field.type}" for field in plan.columns],
        "keys": None if plan.keys is None else list(plan.keys),
        "plan": text_of(plan.node),
        "text": _TEXT,
        "provider": provider,
        "partitions": partitions,
        "output": output,
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[Difference, ...]:
    """What is not as it was, what the caller can set last; empty where the state can be used."""
    if before.get("text") != _TEXT:
        # Earlier versions wrote expressions with other parentheses and names of functions in capitals.
        before, after = ({**layout, "plan": _words(str(layout.get("plan")))} for layout in (before, after))
    found = (key for key in _MEANINGS if before.get(key) != after.get(key))
    return tuple(Difference(_MEANINGS[key], _told(before.get(key)), _told(after.get(key))) for key in found)


def _words(plan: str) -> str:
    """The words of each line of a plan in an order that the line's form does not change."""
    return "\n".join(" ".join(sorted(_WORD.findall(line.casefold()))) for line in plan.splitlines())


def _told(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 and "\n" not in text else "another one"
