"""The documented log events are written, at the documented level, by the documented process."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.log_events import LOG_EVENTS, LogEvent

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error"}
PROCESSES = {"API": {"service"}, "worker": {"workers"}, "both": {"service", "workers"}}


def levels_in(node: ast.AST) -> set[str]:
    """The levels of the methods of `_log` that an expression names."""
    return {
        "error" if part.attr == "exception" else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "_log"
    }


def written(source: str) -> Iterator[tuple[str, str]]:
    """(event, level) of every call of `_log`, also of one whose method was chosen before: `tell = _log.info if … `."""
    tree = ast.parse(source)
    chosen: dict[str, set[str]] = {
        target.id: levels
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and (levels := levels_in(node.value) & LEVELS)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            levels = chosen.get(node.func.id, set()) if isinstance(node.func, ast.Name) else levels_in(node.func)
            for level in levels & LEVELS:
                yield str(node.args[0].value), level


EVENTS: dict[str, set[tuple[str, str]]] = defaultdict(set)
"""Event -> (package, level)."""
for package in ("service", "workers"):
    for path in (ROOT / package).rglob("*.py"):
        for event, level in written(path.read_text(encoding="utf-8")):
            EVENTS[event].add((package, level))


@pytest.mark.parametrize("event", LOG_EVENTS, ids=lambda event: event.name)
def test_a_documented_event_is_written(event: LogEvent) -> None:
    packages = {package for package, level in EVENTS[event.name] if level == event.level}
    assert packages
    # What the service's modules write is written by workers too, where they use them.
    assert packages <= PROCESSES[event.process]


def test_every_error_is_documented() -> None:
    errors = {name for name, places in EVENTS.items() if any(level == "error" for _, level in places)}
    assert errors - {event.name for event in LOG_EVENTS} == set()


def test_names_are_told_once_and_the_worst_first() -> None:
    names = [event.name for event in LOG_EVENTS]
    assert len(names) == len(set(names))
    order = ["error", "warning", "info"]
    assert [event.level for event in LOG_EVENTS] == sorted((event.level for event in LOG_EVENTS), key=order.index)


def test_a_method_that_was_chosen_before_is_seen() -> None:
    source = "tell = _log.debug if quiet else _log.info\ntell('request', ms=1)\n_log.exception('oh')\nprint('no')\n"
    assert set(written(source)) == {("request", "debug"), ("request", "info"), ("oh", "error")}
