"""The checks behind `evenkeel doctor`: each looks at one thing and gives a finding with what to do."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from service.broker import broker_fault, celery_config, is_embedded
from service.cli.database_faults import WORTH_TELLING, explain
from service.cli.errors import CliError
from service.cli.listening import listen
from service.cli.memory_limit import Memory, memory_at_hand
from service.cli.spark_jars import lacks_s3a
from service.datasets.roots import DirectoryRoot, StoreRoot, roots_of
from service.datasets.stores import StoreUnavailableError
from service.java import JavaError, find_java
from service.settings import Settings
from service.spec.quantities import parse_bytes
from service.store.migrate import (
    SchemaMismatchError,
    Standing,
    check_drift,
    head_revision,
    read_schema,
    require_current,
)
from service.store.session import Database

_GIB = 1 << 30
_DISK_NEEDED, _DISK_WANTED = 1 * _GIB, 5 * _GIB
_BESIDE_THE_HEAP = _GIB // 2


class Level(StrEnum):
    """How bad it is: `WARN` may work, `FAIL` will not."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """What one check found and, unless all is well, what to do."""

    name: str
    level: Level
    detail: str
    advice: str = ""


def examine(settings: Settings, environment: Mapping[str, str], *, with_worker: bool = True) -> list[Finding]:
    """Every check in order. Changes nothing but the embedded broker's folders, which it makes where a state directory
    is already."""
    findings = [check_python()]
    if with_worker:
        findings += [check_java(environment), check_pyspark(), check_memory(settings)]
    findings += [
        check_state_dir(settings.state_dir),
        check_disk(settings.state_dir),
        check_port(settings),
        check_database(settings),
        check_broker(settings),
        *check_data_roots(settings),
        check_results_dir(settings),
    ]
    return findings


def check_python() -> Finding:
    """Which interpreter this is; the package does not install on one that is too old."""
    return Finding("Python", Level.OK, f"{platform.python_version()} at {sys.executable}")


def check_java(environment: Mapping[str, str]) -> Finding:
    """A Java that Spark can use."""
    try:
        java = find_java(environment)
    except JavaError as error:
        return Finding("Java", Level.FAIL, error.message, error.advice)
    return Finding("Java", Level.OK, f"version {java.version} at {java.path}")


def check_pyspark() -> Finding:
    """Whether the worker's extra is installed."""
    try:
        return Finding("pyspark", Level.OK, version("pyspark"))
    except PackageNotFoundError:
        return Finding("pyspark", Level.FAIL, "not installed", "Run: pip install 'evenkeel[worker]'")


def check_memory(settings: Settings, memory: Memory | None = None) -> Finding:
    """Memory for the worker's JVM, where Spark runs on this machine; in a container, of what that may take."""
    memory = memory or memory_at_hand()
    heap = parse_bytes(settings.spark.driver_memory)
    found = f"{_gib(memory.available)} free of {_gib(memory.total)}; the worker's JVM takes up to {_gib(heap)}"
    advice = "Close something, or set EVENKEEL_SPARK_DRIVER_MEMORY to less, such as 1g."
    if heap >= memory.total:
        return Finding("memory", Level.FAIL, found, advice)
    if heap + _BESIDE_THE_HEAP > memory.available:
        return Finding("memory", Level.WARN, found, advice)
    return Finding("memory", Level.OK, found)


def check_state_dir(state_dir: Path) -> Finding:
    """Whether the state directory can be written to, or made."""
    nearest = _nearest_existing(state_dir)
    if not _takes_files(nearest):
        return Finding(
            "state directory",
            Level.FAIL,
            f"{nearest} cannot be written to",
            "Set EVENKEEL_STATE_DIR to a directory of yours.",
        )
    return Finding("state directory", Level.OK, str(state_dir) if nearest == state_dir else f"{state_dir}, to be made")


def check_disk(directory: Path) -> Finding:
    """Free space for results and shuffles."""
    free = shutil.disk_usage(_nearest_existing(directory)).free
    advice = f"Free some space, or set EVENKEEL_STATE_DIR elsewhere; {_gib(_DISK_WANTED)} is comfortable."
    if free < _DISK_NEEDED:
        return Finding("disk", Level.FAIL, f"{_gib(free)} free", advice)
    if free < _DISK_WANTED:
        return Finding("disk", Level.WARN, f"{_gib(free)} free", advice)
    return Finding("disk", Level.OK, f"{_gib(free)} free")


def check_port(settings: Settings) -> Finding:
    """Whether the API could listen. A service that runs already takes its own port: that is a warning."""
    try:
        listen(settings).close()
    except CliError as error:
        taken = "taken" in error.message
        return Finding("port", Level.WARN if taken else Level.FAIL, error.message, error.advice)
    return Finding("port", Level.OK, f"{settings.api.host}, port {settings.api.port} is free")


def check_database(settings: Settings) -> Finding:
    """Whether the database answers and has the right schema."""
    if settings.database.url is None and not (settings.state_dir / "evenkeel.db").exists():
        return Finding("database", Level.OK, "SQLite in the state directory, to be made by `evenkeel up`")
    try:
        with closing(Database(settings.database_url, settings=settings.database)) as database:
            return _examine_schema(database)
    except SchemaMismatchError as error:
        return Finding("database", Level.FAIL, str(error), "An older version does not run on it.")
    except WORTH_TELLING as error:
        detail, advice = explain(error)
        return Finding("database", Level.FAIL, detail, advice)


def _examine_schema(database: Database) -> Finding:
    kind = "SQLite" if database.engine.dialect.name == "sqlite" else "PostgreSQL"
    found = read_schema(database)
    if found.standing in (Standing.EMPTY, Standing.BEHIND):
        where = "has no tables yet" if found.revision is None else f"is at revision {found.revision}"
        advice = "Run `evenkeel migrate`; `evenkeel up` does so by itself."
        return Finding("database", Level.WARN, f"{kind}, {where}; this version needs {head_revision()}", advice)
    require_current(database)
    if found.standing is Standing.SERVED:
        return Finding("database", Level.OK, f"{kind}, at a newer version's revision {found.revision}, which serves us")
    drift = check_drift(database)
    if drift:
        detail = f"{kind}, at revision {found.revision}, but {len(drift)} things differ from what that makes"
        return Finding("database", Level.WARN, detail, "`evenkeel migrate --check` names them.")
    return Finding("database", Level.OK, f"{kind}, at revision {found.revision}")


def check_broker(settings: Settings) -> Finding:
    """Whether messages can be sent."""
    if is_embedded(settings):
        if not settings.state_dir.exists():
            return Finding("broker", Level.OK, "folders in the state directory, to be made by `evenkeel up`")
        try:
            celery_config(settings)
        except OSError as error:
            return Finding("broker", Level.FAIL, str(error), "Make the state directory writable.")
    fault = broker_fault(settings)
    if fault is not None:
        return Finding("broker", Level.FAIL, fault.detail, fault.advice)
    return Finding("broker", Level.OK, "folders in the state directory" if is_embedded(settings) else "Redis answers")


def check_data_roots(settings: Settings) -> list[Finding]:
    """Whether jobs can read what they are allowed to; one finding a root."""
    findings = [
        _check_store(root) if isinstance(root, StoreRoot) else _check_directory(root, settings)
        for root in roots_of(settings)
    ]
    if lacks_s3a(settings):
        advice = (
            "Name hadoop-aws in the file of EVENKEEL_SPARK_PROPERTIES_FILE: spark.jars.packages or spark.jars, in the "
            "version of Spark's hadoop-client jars."
        )
        findings.append(Finding("Spark and S3", Level.WARN, "Spark has no jar that reads s3a://", advice))
    return findings


def _check_directory(root: Path | DirectoryRoot, settings: Settings) -> Finding:
    path = root.path if isinstance(root, DirectoryRoot) else root
    if path.is_dir() and os.access(path, os.R_OK | os.X_OK):
        return Finding("data root", Level.OK, str(path))
    if not settings.data.roots:
        return Finding("data root", Level.OK, f"{path}, to be made by `evenkeel up`")
    return Finding(
        "data root", Level.FAIL, f"{path} is no readable directory", "Make it, or correct EVENKEEL_DATA_ROOTS."
    )


def _check_store(root: StoreRoot) -> Finding:
    name = str(root.location)
    try:
        children = root.store.children(root.location.path)
    except StoreUnavailableError as error:
        return Finding("data root", Level.FAIL, f"{name}: {error}", error.advice)
    except PermissionError:
        advice = "Let the service's credentials list the bucket (s3:ListBucket) and read its objects (s3:GetObject)."
        return Finding("data root", Level.FAIL, f"{name} cannot be listed: access is denied", advice)
    except OSError as error:
        first = str(error).split("\n", 1)[0][:200]
        return Finding("data root", Level.FAIL, f"{name} cannot be listed: {first}", "Look at the store.")
    if children is None:
        advice = "Put files there, or correct EVENKEEL_DATA_ROOTS."
        return Finding("data root", Level.WARN, f"{name} has nothing in it", advice)
    return Finding("data root", Level.OK, name)


def check_results_dir(settings: Settings) -> Finding:
    """Whether results can be written."""
    nearest = _nearest_existing(settings.results_dir)
    if _takes_files(nearest):
        if settings.data.results is not None and nearest != settings.results_dir:
            advice = "Mount the share, or make the directory; the service makes it where it starts."
            return Finding("results", Level.WARN, f"{settings.results_dir} does not exist", advice)
        return Finding("results", Level.OK, str(settings.results_dir))
    return Finding(
        "results", Level.FAIL, f"{nearest} cannot be written to", "Set EVENKEEL_DATA_RESULTS to a directory of yours."
    )


def _nearest_existing(path: Path) -> Path:
    return next(part for part in (path, *path.parents) if part.exists())


def _takes_files(directory: Path) -> bool:
    # Permissions alone do not tell: root may write anywhere, and not on a file system that is mounted read-only.
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
