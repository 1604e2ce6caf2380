"""The documented log events are written, at the documented level, by the documented process."""

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
"""By the process that an event is documented for: the packages that write it. Workers use modules of the service."""


def check(root: Path) -> Iterator[str]:
    """A sentence for every difference between the list of log events and what the product below `root` logs."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in product_files(root):
        for event, level in _written((root / path).read_text(encoding="utf-8")):
            found[event].add((path.parts[0], level))
    for declared in LOG_EVENTS:
        packages = {package for package, level in found[declared.name] if level == declared.level}
        if not packages:
            yield f"log event {declared.name}: no code writes it at level {declared.level}."
        if not packages <= PROCESSES[declared.process]:
            yield f"log event {declared.name}: {', '.join(sorted(packages))} writes it, not only {declared.process}."
    names = [declared.name for declared in LOG_EVENTS]
    for event, places in found.items():
        if event not in names and any(level == "error" for _, level in places):
            yield f"log event {event}: an error is not documented."
    if len(names) != len(set(names)):
        yield "service/monitoring/logs.py: it has an event twice."
    levels = [declared.level for declared in LOG_EVENTS]
    if levels != sorted(levels, key=LEVELS.index):
        yield "service/monitoring/logs.py: events of a more severe level come first."


def _written(source: str) -> Iterator[tuple[str, str]]:
    """(event, level) of every call of `_log`, also where it chose the method before: `log = _log.info if … else …`."""
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
    """The levels of the methods of `_log` that an expression names."""
    return {
        "error" if part.attr == "exception" else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "_log"
    }
