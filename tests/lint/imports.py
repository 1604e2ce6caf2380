"""Modules import only what `MAY_IMPORT` allows them. The check reads the source and imports none of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.lint.sources import PACKAGES

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # The vocabulary: pure values.
    "service.spec": ("service.spec",),
    "service.settings": (
        "service.settings",
        "service.spark_settings",
        "service.data_settings",
        "service.broker_settings",
        "service.limit_settings",
        "service.client_settings",
        "service.spec.locations",
    ),
    "service.client_settings": (),
    "service.data_settings": ("service.data_settings", "service.spec"),
    "service.broker_settings": ("service.broker_settings",),
    "service.limit_settings": (),
    "service.spark_settings": ("service.spark_settings", "service.spec"),
    "service.store": ("service.store", "service.spec", "service.settings"),
    "service.datasets": ("service.datasets", "service.spec", "service.settings", "service.data_settings"),
    # Posted rows: texts and files; `recovery` reads the database too.
    "service.ingest": ("service.ingest", "service.spec", "service.datasets", "service.errors"),
    "service.ingest.recovery": ("service.ingest", "service.datasets", "service.store"),
    # The commands that call the API run on machines without a service.
    "service.cli.client": (
        "service.cli.client",
        "service.cli.amounts",
        "service.cli.errors",
        "service.cli.signals",
        "service.client_settings",
        "service.spec",
        "service.__version__",
    ),
    # The service does not import the workers.
    "service": ("service",),
    # The engine, from the bottom up.
    "workers.engine.errors": (),
    "workers.engine.plan": ("workers.engine.plan", "workers.engine.errors", "service.spec"),
    "workers.engine.stats": ("workers.engine.stats", "workers.engine.plan", "workers.engine.errors", "service.spec"),
    "workers.engine.rules": (
        "workers.engine.rules",
        "workers.engine.budget",
        "workers.engine.stats",
        "workers.engine.plan",
        "workers.engine.errors",
        "service.spec",
    ),
    "workers.engine.budget": (),
    "workers.engine.planner": (
        "workers.engine.planner",
        "workers.engine.budget",
        "workers.engine.rules",
        "workers.engine.stats",
        "workers.engine.plan",
        "workers.engine.errors",
        "service.spec",
    ),
    "workers.engine": ("workers.engine", "service.spec", "service.datasets"),
    # The writer of a managed table merges rows as its reader does.
    "workers.engine.streaming.sinks": (
        "workers.engine",
        "service.spec",
        "service.results.arrow_types",
        "service.results.files",
        "service.results.final_merge",
        "service.results.json_values",
        "service.results.managed_files",
        "service.results.newest_rows",
    ),
    "workers": (
        "workers",
        "service.spec",
        "service.store",
        "service.settings",
        "service.spark_settings",
        "service.spark_properties",
        "service.datasets",
        "service.errors",
        "service.dispatch",
        "service.broker",
        "service.causes",
        "service.daemon_pool",
        "service.messages",
        "service.logging",
        "service.java",
        "service.lifeline",
        "service.ingest.recovery",
        "service.jobs.purge_jobs",
        "service.results.directories",
        "service.__version__",
    ),
}
"""What a module may import of the product's packages: the entry of the longest prefix of its name decides."""

PYSPARK = ("workers.engine.spark", "workers.engine.streaming", "workers.spark_session")
"""Where `pyspark` may be imported."""

PY4J = (*PYSPARK, "workers.cancellation", "workers.failures", "workers.watchdog")
"""Where `py4j`, the bridge to the JVM, may be imported: to cancel calls, and to recognise a lost JVM."""

NOT_IN_A_PURE_ENGINE = frozenset({"time", "random", "os", "socket", "threading", "subprocess"})
"""Modules that make a plan depend on more than its inputs."""

CLOCKS = frozenset({"now", "today", "utcnow"})
"""Methods of `datetime` that read the clock. Its types are allowed: a hot key may be a date."""

PURE = ("workers.engine.plan", "workers.engine.stats", "workers.engine.rules", "workers.engine.planner")


def check(root: Path) -> Iterator[str]:
    """A sentence for every import in the product's packages below `root` that is not allowed."""
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
        if is_within(module, *PURE):
            yield from _impurities(module, path, imported)


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
    """Every imported module, of imports inside functions and under TYPE_CHECKING too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            found = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{found}.{alias.name}" for alias in node.names)


def is_within(module: str, *prefixes: str) -> bool:
    """Whether the module is one of `prefixes`, or is in one."""
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)
