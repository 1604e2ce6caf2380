"""Modules import only what `MAY_IMPORT` allows them: checked in the source, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

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
    # Posted rows: texts and files, and in `recovery` what the database knows of them.
    "service.ingest": ("service.ingest", "service.spec", "service.datasets", "service.errors"),
    "service.ingest.recovery": ("service.ingest", "service.datasets", "service.store"),
    # The commands of the API run where nothing of the service does.
    "service.cli.client": (
        "service.cli.client",
        "service.cli.amounts",
        "service.cli.errors",
        "service.cli.signals",
        "service.client_settings",
        "service.spec",
        "service.__version__",
    ),
    # Nothing in the service knows of the workers.
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
    # Who writes a managed table, and who reads it, put rows together alike.
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
"""For the longest prefix that a module has: what of our own packages it may import."""

PYSPARK = ("workers.engine.spark", "workers.engine.streaming", "workers.spark_session")
"""Where `pyspark` may be imported."""

PY4J = (*PYSPARK, "workers.cancellation", "workers.failures", "workers.watchdog")
"""Where the bridge to the JVM may be: whoever cancels in a JVM, or tells a dead one from a failed query."""

NOT_IN_A_PURE_ENGINE = frozenset({"time", "random", "os", "socket", "threading", "subprocess"})
"""Clocks, chance and the world: none of the planner's business."""

CLOCKS = frozenset({"now", "today", "utcnow"})
"""What datetime reads the clock by. Its types are values like others: a hot key may be a date."""

PURE = ("workers.engine.plan", "workers.engine.stats", "workers.engine.rules", "workers.engine.planner")


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("service", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
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
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


MODULES = dict(modules())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_stands_below_it(module: str) -> None:
    layer = max((prefix for prefix in MAY_IMPORT if is_within(module, prefix)), key=len)
    ours = [name for name in imports_of(module, MODULES[module]) if is_within(name, "service", "workers", "tests")]
    assert [name for name in ours if not is_within(name, *MAY_IMPORT[layer])] == []


@pytest.mark.parametrize("module", [module for module in MODULES if not is_within(module, *PYSPARK)])
def test_spark_is_imported_in_its_own_places_alone(module: str) -> None:
    assert [name for name in imports_of(module, MODULES[module]) if is_within(name, "pyspark")] == []


@pytest.mark.parametrize("module", [module for module in MODULES if not is_within(module, *PY4J)])
def test_the_bridge_to_the_jvm_is_imported_in_its_own_places_alone(module: str) -> None:
    assert [name for name in imports_of(module, MODULES[module]) if is_within(name, "py4j")] == []


@pytest.mark.parametrize("module", [module for module in MODULES if is_within(module, *PURE)])
def test_the_planner_has_no_clock_no_chance_and_no_world(module: str) -> None:
    imported = {name.split(".")[0] for name in imports_of(module, MODULES[module])}
    assert imported & NOT_IN_A_PURE_ENGINE == set()
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & CLOCKS == set()
