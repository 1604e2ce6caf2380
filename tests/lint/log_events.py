"""Checks that the documented log events are logged at the documented level, by the documented process."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from service.monitoring.logs import LOG_EVENTS
from tests.lint.sources import product_files

LEVELS = ("error", "warning", "info", "debug")
"""The most severe first."""

PROCESSES = {"API": {"service"}, "worker": {"workers"}, "both": {"service", "workers"}}
"""Documented process -> the packages that may log the event. Workers use modules of the service."""


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every difference between the list of log events and what the product below `root` logs."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in product_files(root):
        for event, level in _logged((root / path).read_text(encoding="utf-8")):
            found[event].add((path.parts[0], level))
    for declared in LOG_EVENTS:
        packages = {package for package, level in found[declared.name] if level == declared.level}
        if not packages:
            yield f"log event {declared.name}: no code logs it at level {declared.level}."
        if not packages <= PROCESSES[declared.process]:
            yield f"log event {declared.name}: {', '.join(sorted(packages))} logs it, not only {declared.process}."
    names = [declared.name for declared in LOG_EVENTS]
    for event, places in found.items():
        if event not in names and any(level == "error" for _, level in places):
            yield f"log event {event}: an error is not documented."
    if len(names) != len(set(names)):
        yield "service/monitoring/logs.py: it has an event twice."
    levels = [declared.level for declared in LOG_EVENTS]
    if levels != sorted(levels, key=LEVELS.index):
        yield "service/monitoring/logs.py: events of a more severe level must come first."


def _logged(source: str) -> Iterator[tuple[str, str]]:
    """Yields the event and level of every call of `_log`, also of `log = _log.info if … else …`."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    chosen: dict[str, set[str]] = {
        target.id: levels
        for node in nodes
        if isinstance(node, ast.Assign) and (levels := _levels_in(node.value) & {*LEVELS})
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            levels = chosen.get(node.func.id, set()) if isinstance(node.func, ast.Name) else _levels_in(node.func)
            for level in levels & {*LEVELS}:
                yield str(node.args[0].value), level


def _levels_in(node: ast.AST) -> set[str]:
    """Returns the levels of the methods of `_log` in an expression."""
    return {
        "error" if part.attr == "exception" else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "_log"
    }
