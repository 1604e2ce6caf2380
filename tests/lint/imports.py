"""Checks that modules import only what they may. The check reads the source and imports none of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.lint.sources import PACKAGES

_ENGINE = ("service.contract", "service.sql", "workers.engine.budget")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # The service, from the bottom up.
    "service.contract": ("service.contract",),
    "service.sql": ("service.sql", "service.contract"),
    "service.config": ("service.config", "service.contract"),
    # The commands that call the API run on machines without a service: only these settings may be imported.
    "service.config.client": ("service.config.SettingsGroup", "service.config.bounded"),
    "service.monitoring": ("service.monitoring", "service.config"),
    "service.store": ("service.store", "service.config", "service.contract", "service.sql"),
    "service.data": ("service.data", "service.config", "service.contract", "service.sql"),
    # Completes requests that append rows, in files and in the database.
    "service.data.posted_rows": ("service.data", "service.store"),
    "service.broker": ("service.broker", "service.config", "service.contract", "service.store"),
    "service.results": ("service.results", "service.config", "service.contract", "service.sql", "service.store"),
    "service.ingest": ("service.ingest", "service.contract", "service.results.columns", "service.sql"),
    "service.jobs": (
        "service.jobs",
        "service.broker",
        "service.config",
        "service.contract",
        "service.data",
        "service.results",
        "service.sql",
        "service.store",
        "service.__version__",
    ),
    "service.streams": (
        "service.streams",
        "service.config",
        "service.contract",
        "service.data",
        "service.ingest",
        "service.jobs",
        "service.sql",
        "service.store",
    ),
    "service.keys": ("service.keys", "service.contract", "service.jobs.views", "service.store"),
    "service.backup": ("service.backup", "service.contract", "service.results", "service.store", "service.__version__"),
    # Its distribution contains nothing else of this project.
    "service.client": ("service.client", "service.config.client", "service.contract"),
    "service.dashboard": (),
    "service.api": (
        "service.api",
        "service.broker",
        "service.config",
        "service.contract",
        "service.data",
        "service.ingest",
        "service.jobs",
        "service.keys",
        "service.monitoring",
        "service.results",
        "service.store",
        "service.streams",
        "service.__version__",
    ),
    # The service does not import the workers.
    "service": ("service",),
    # The engine, from the bottom up.
    "workers.engine.budget": (),
    "workers.engine.plan": (*_ENGINE, "workers.engine.plan"),
    "workers.engine.statistics": (*_ENGINE, "workers.engine.plan", "workers.engine.statistics"),
    "workers.engine.rules": (*_ENGINE, "workers.engine.plan", "workers.engine.statistics", "workers.engine.rules"),
    "workers.engine.planner": (*_ENGINE, "workers.engine.plan", "workers.engine.statistics", "workers.engine.rules"),
    "workers.engine.report": (
        *_ENGINE,
        "workers.engine.plan",
        "workers.engine.statistics",
        "workers.engine.rules",
        "workers.engine.report",
    ),
    "workers.engine.spark": ("workers.engine", "service.contract", "service.sql", "service.data"),
    # The writer of a managed table merges rows as its reader does.
    "workers.engine.streaming": (
        "workers.engine",
        "service.contract",
        "service.sql",
        "service.data",
        "service.results.columns",
        "service.results.json_values",
        "service.results.files",
        "service.results.merge",
        "service.results.stream_result",
    ),
    # The worker, from the bottom up.
    "workers.metrics": ("service.contract", "service.monitoring", "service.store"),
    "workers.periodic": ("service.store",),
    "workers.driver": (
        "workers.driver",
        "workers.engine.spark",
        "workers.periodic",
        "service.config",
        "service.contract",
        "service.data",
    ),
    "workers.jobs": (
        "workers.jobs",
        "workers.driver",
        "workers.engine",
        "service.broker",
        "service.contract",
        "service.data",
        "service.results",
        "service.sql",
        "service.store",
    ),
    "workers.streams": (
        "workers.streams",
        "workers.jobs",
        "workers.driver",
        "workers.engine",
        "workers.metrics",
        "service.config",
        "service.contract",
        "service.data",
        "service.sql",
        "service.store",
    ),
    "workers": (
        "workers",
        "service.broker",
        "service.config",
        "service.contract",
        "service.data",
        "service.monitoring",
        "service.results",
        "service.store",
        "service.__version__",
    ),
}
"""Prefix of a module's name -> what it may import of the product's packages. The longest prefix counts."""

RELATIVE = ("service.client", "service.contract", "service.config.client")
"""Modules that the distributions also contain as `evenkeel.client` and so on: they import each other relatively."""

PYSPARK = ("workers.engine.spark", "workers.engine.streaming", "workers.driver")
"""Modules that may import `pyspark`."""

PY4J = (*PYSPARK, "workers.jobs.cancellation", "workers.jobs.outcome")
"""Modules that may import `py4j`, the bridge to the JVM: also to cancel calls, and to recognise a lost JVM."""

STATEMENTS = tuple(f"sqlalchemy.{name}" for name in ("select", "insert", "update", "delete", "text"))
"""What only `service.store` may import: all SQL statements of the service are there."""

NOT_IN_A_PURE_ENGINE = frozenset({"time", "random", "os", "socket", "threading", "subprocess"})
"""Modules with which a plan would depend on more than its inputs."""

CLOCKS = frozenset({"now", "today", "utcnow"})
"""Methods of `datetime` that read the clock. Its types are allowed, since a hot key may be a date."""

PURE = (
    "workers.engine.plan",
    "workers.engine.statistics",
    "workers.engine.rules",
    "workers.engine.report",
    "workers.engine.planner",
    "workers.engine.streaming.stream_plan",
    "workers.engine.streaming.stream_aggregates",
    "workers.engine.streaming.stream_joins",
)


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every import in the product's packages below `root` that is not allowed."""
    for module, path in _modules(root):
        imported = list(imports_of(module, path))
        layer = max((prefix for prefix in MAY_IMPORT if is_within(module, prefix)), key=len, default=None)
        if layer is None:
            yield f"{module}: no entry of MAY_IMPORT covers it."
            continue
        ours = (name for name in imported if is_within(name, "service", "workers", "tests"))
        yield from (f"{module}: it may not import {name}." for name in ours if not is_within(name, *MAY_IMPORT[layer]))
        for library, places in (("pyspark", PYSPARK), ("py4j", PY4J)):
            if not is_within(module, *places) and any(is_within(name, library) for name in imported):
                yield f"{module}: it may not import {library}; {', '.join(places)} may."
        if is_within(module, *RELATIVE):
            names = sorted(name for name in _absolute_imports(path) if is_within(name, "service"))
            yield from (f"{module}: it must import {name} relatively." for name in names)
        if not is_within(module, "service.store") and (found := set(imported) & set(STATEMENTS)):
            yield f"{module}: it may not import {', '.join(sorted(found))}; put the statement into service.store."
        if is_within(module, *PURE):
            yield from _impurities(module, path, imported)


def _absolute_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


def _impurities(module: str, path: Path, imported: list[str]) -> Iterator[str]:
    for name in sorted({name.split(".")[0] for name in imported} & NOT_IN_A_PURE_ENGINE):
        yield f"{module}: the planner may not import {name}."
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name in sorted({node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & CLOCKS):
        yield f"{module}: the planner may not read the clock (.{name})."


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(module: str, path: Path) -> Iterator[str]:
    """Yields every imported name, also those imported inside functions and under TYPE_CHECKING."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            found = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{found}.{alias.name}" for alias in node.names)


def is_within(module: str, *prefixes: str) -> bool:
    """Returns whether the module is one of `prefixes`, or in one."""
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)
