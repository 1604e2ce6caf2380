"""The checks of `evenkeel doctor`. Each check returns findings with advice; `examine` runs the quick ones.

The module has first the checks of this machine and its configuration, then those of the Spark cluster and the running
workers, and last the functions that read memory limits and Spark's jars.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil

from service.broker.configuration import broker_fault, celery_config, is_embedded
from service.cli.database import database_errors, explain_database_error
from service.cli.preparation import child_environment, listen
from service.cli.terminal import CliError
from service.client.text import amount
from service.config.processes import JavaError, find_java
from service.config.settings import Settings
from service.config.spark import SparkPropertiesError, read_properties
from service.contract.enums import EXPECTED_QUEUES
from service.contract.model import parse_bytes
from service.data.roots import DirectoryRoot, StoreRoot, StoreUnavailableError, roots_of
from service.jobs.readiness import QUEUE_ADVICE, worker_silence_ms
from service.store import workers
from service.store.migrate import (
    SchemaMismatchError,
    SchemaState,
    check_drift,
    head_revision,
    read_schema,
    require_current,
)
from service.store.session import Database
from service.store.workers import queues_listened_to

_GIB = 1 << 30
_REQUIRED_DISK, _RECOMMENDED_DISK = 1 * _GIB, 5 * _GIB
_OFF_HEAP = _GIB // 2
"""Memory that the worker needs in addition to the heap of its JVM."""

_PROBE = (sys.executable, "-P", "-m", "workers.driver.diagnostics")
_CLUSTER_CHECK_SECONDS = 240.0
"""Time to start the driver, run a few small jobs and stop the driver, on a busy machine."""

_CGROUP_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUP_MOUNT = Path("/sys/fs/cgroup")
_JAR_PROPERTIES = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


@dataclass(frozen=True)
class _CgroupFiles:
    """Names of the memory files of one version of control groups."""

    limit: str
    usage: str
    reclaimable: str
    """The key in `memory.stat` of cached file pages. They count as usage, but the kernel reclaims them first."""


_CGROUP_V1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_CGROUP_V2 = _CgroupFiles("memory.max", "memory.current", "inactive_file")


@dataclass(frozen=True)
class Memory:
    """Total and available memory, in bytes."""

    total: int
    available: int


class Level(StrEnum):
    """How serious a finding is. With a `WARN`, the service may still work; with a `FAIL`, it will not."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """The result of one check, with advice unless it is OK."""

    name: str
    level: Level
    detail: str
    advice: str = ""


def examine(settings: Settings, environment: Mapping[str, str], *, with_worker: bool = True) -> list[Finding]:
    """Runs the checks of this machine and its configuration.

    Changes nothing, except that it creates the embedded broker's folders in an existing state directory.
    """
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
    """Reports the interpreter. Its version is not checked: the package cannot be installed with an older one."""
    return Finding("Python", Level.OK, f"{platform.python_version()} at {sys.executable}")


def check_java(environment: Mapping[str, str]) -> Finding:
    """Checks that Java is installed in a version that Spark supports."""
    try:
        java = find_java(environment)
    except JavaError as error:
        return Finding("Java", Level.FAIL, error.message, error.advice)
    return Finding("Java", Level.OK, f"version {java.version} at {java.path}")


def check_pyspark() -> Finding:
    """Checks that pyspark is installed, which the extra `worker` contains."""
    try:
        return Finding("pyspark", Level.OK, version("pyspark"))
    except PackageNotFoundError:
        return Finding("pyspark", Level.FAIL, "not installed", "Run: pip install 'evenkeel[worker]'")


def check_memory(settings: Settings, memory: Memory | None = None) -> Finding:
    """Compares the memory of the worker's JVM with that of the machine or container."""
    memory = memory or available_memory()
    heap = parse_bytes(settings.spark.driver_memory)
    found = f"{_gib(memory.available)} free of {_gib(memory.total)}; the worker's JVM takes up to {_gib(heap)}"
    isolated = settings.worker.isolated_drivers * parse_bytes(settings.worker.isolated_memory)
    if isolated:
        found += f", jobs with isolation: driver up to {_gib(isolated)} more"
    advice = "Stop other programs, or set EVENKEEL_SPARK_DRIVER_MEMORY to a lower value, such as 1g."
    if heap >= memory.total:
        return Finding("memory", Level.FAIL, found, advice)
    if heap + _OFF_HEAP > memory.available:
        return Finding("memory", Level.WARN, found, advice)
    return Finding("memory", Level.OK, found)


def check_state_dir(state_dir: Path) -> Finding:
    """Checks that the state directory is writable or can be created."""
    nearest = _nearest_existing(state_dir)
    if not _is_writable(nearest):
        advice = "Set EVENKEEL_STATE_DIR to a directory that you can write to."
        return Finding("state directory", Level.FAIL, f"{nearest} is not writable", advice)
    detail = str(state_dir) if nearest == state_dir else f"{state_dir}, will be created"
    return Finding("state directory", Level.OK, detail)


def check_disk(directory: Path) -> Finding:
    """Checks the free disk space for results and shuffles."""
    free = shutil.disk_usage(_nearest_existing(directory)).free
    advice = f"Free some space, or set EVENKEEL_STATE_DIR to another disk; {_gib(_RECOMMENDED_DISK)} are recommended."
    if free >= _RECOMMENDED_DISK:
        return Finding("disk", Level.OK, f"{_gib(free)} free")
    return Finding("disk", Level.FAIL if free < _REQUIRED_DISK else Level.WARN, f"{_gib(free)} free", advice)


def check_port(settings: Settings) -> Finding:
    """Checks that the API can listen. A port in use is a warning, since a running service uses its own port."""
    try:
        listen(settings).close()
    except CliError as error:
        level = Level.WARN if "in use" in error.message else Level.FAIL
        return Finding("port", level, error.message, error.advice)
    return Finding("port", Level.OK, f"{settings.api.host}, port {settings.api.port} is free")


def check_database(settings: Settings) -> Finding:
    """Checks that the database is reachable and its schema compatible."""
    if settings.database.url is None and not (settings.state_dir / "evenkeel.db").exists():
        return Finding("database", Level.OK, "SQLite in the state directory; `evenkeel up` creates it")
    try:
        with closing(Database(settings.database_url, settings=settings.database)) as database:
            return _examine_schema(database)
    except SchemaMismatchError as error:
        return Finding("database", Level.FAIL, str(error), "This version cannot use it.")
    except database_errors() as error:
        detail, advice = explain_database_error(error)
        return Finding("database", Level.FAIL, detail, advice)


def _examine_schema(database: Database) -> Finding:
    kind = "SQLite" if database.engine.dialect.name == "sqlite" else "PostgreSQL"
    found = read_schema(database)
    if found.state in (SchemaState.EMPTY, SchemaState.OUTDATED):
        if found.state is SchemaState.EMPTY and kind == "SQLite":
            return Finding("database", Level.OK, "SQLite, new; `evenkeel up` or `evenkeel migrate` creates its tables")
        where = "has no tables yet" if found.revision is None else f"is at revision {found.revision}"
        advice = "Run `evenkeel migrate`; `evenkeel up` does it automatically."
        return Finding("database", Level.WARN, f"{kind}, {where}; this version requires {head_revision()}", advice)
    require_current(database)
    if found.state is SchemaState.COMPATIBLE:
        return Finding(
            "database", Level.OK, f"{kind}, at revision {found.revision} of a newer version, which is compatible"
        )
    drift = check_drift(database)
    if drift:
        detail = f"{kind}, at revision {found.revision}, but with {amount(len(drift), 'difference')} from its schema"
        return Finding("database", Level.WARN, detail, "`evenkeel migrate --check` lists them.")
    return Finding("database", Level.OK, f"{kind}, at revision {found.revision}")


def check_broker(settings: Settings) -> Finding:
    """Checks that the broker accepts messages."""
    if is_embedded(settings):
        if not settings.state_dir.exists():
            return Finding("broker", Level.OK, "folders in the state directory; `evenkeel up` creates them")
        try:
            celery_config(settings)
        except OSError as error:
            return Finding("broker", Level.FAIL, str(error), "Make the state directory writable.")
    fault = broker_fault(settings)
    if fault is not None:
        return Finding("broker", Level.FAIL, fault.detail, fault.advice)
    return Finding("broker", Level.OK, "folders in the state directory" if is_embedded(settings) else "Redis answers")


def check_data_roots(settings: Settings) -> list[Finding]:
    """Checks that jobs can read the data roots; returns a finding for each."""
    findings = [
        _check_store(root) if isinstance(root, StoreRoot) else _check_directory(root, settings)
        for root in roots_of(settings)
    ]
    if is_s3a_missing(settings):
        advice = (
            "Add hadoop-aws, in the version of Spark's hadoop-client jars, to spark.jars.packages or spark.jars in the "
            "file of EVENKEEL_SPARK_PROPERTIES_FILE."
        )
        findings.append(Finding("Spark and S3", Level.WARN, "Spark has no jar for s3a://", advice))
    return findings


def _check_directory(root: Path | DirectoryRoot, settings: Settings) -> Finding:
    path = root.path if isinstance(root, DirectoryRoot) else root
    if path.is_dir() and os.access(path, os.R_OK | os.X_OK):
        return Finding("data root", Level.OK, str(path))
    if not settings.data.roots:
        return Finding("data root", Level.OK, f"{path}; `evenkeel up` creates it")
    advice = "Create it, or correct EVENKEEL_DATA_ROOTS."
    return Finding("data root", Level.FAIL, f"{path} is not a readable directory", advice)


def _check_store(root: StoreRoot) -> Finding:
    name = str(root.location)
    try:
        children = root.store.children(root.location.path)
    except StoreUnavailableError as error:
        return Finding("data root", Level.FAIL, f"{name}: {error}", error.advice)
    except PermissionError:
        advice = "Allow the service to list the bucket (s3:ListBucket) and to read its objects (s3:GetObject)."
        return Finding("data root", Level.FAIL, f"{name} cannot be listed: access is denied", advice)
    except OSError as error:
        first = str(error).split("\n", 1)[0][:200]
        return Finding("data root", Level.FAIL, f"{name} cannot be listed: {first}", "Check the store.")
    if children is None:
        advice = "Put files there, or correct EVENKEEL_DATA_ROOTS."
        return Finding("data root", Level.WARN, f"{name} is empty", advice)
    return Finding("data root", Level.OK, name)


def check_results_dir(settings: Settings) -> Finding:
    """Checks that the results directory is writable."""
    nearest = _nearest_existing(settings.results_dir)
    if _is_writable(nearest):
        if settings.data.results is not None and nearest != settings.results_dir:
            advice = "Mount the share, or create the directory; otherwise the service creates it when it starts."
            return Finding("results", Level.WARN, f"{settings.results_dir} does not exist", advice)
        return Finding("results", Level.OK, str(settings.results_dir))
    advice = "Set EVENKEEL_DATA_RESULTS to a directory that you can write to."
    return Finding("results", Level.FAIL, f"{nearest} is not writable", advice)


def _nearest_existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _is_writable(directory: Path) -> bool:
    # Permissions are not sufficient: they allow root to write anywhere, except on a read-only file system.
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def check_properties(settings: Settings) -> list[Finding]:
    """Checks the file of Spark properties, if one is configured."""
    path = settings.spark.properties_file
    if path is None:
        return []
    try:
        found = read_properties(path)
    except SparkPropertiesError as error:
        return [
            Finding("Spark properties", Level.FAIL, str(error), "Correct the file: until then, workers do not start.")
        ]
    return [Finding("Spark properties", Level.OK, f"{len(found)} in {path}")]


def check_cluster(settings: Settings, environment: Mapping[str, str], command: Sequence[str] = _PROBE) -> list[Finding]:
    """Starts a Spark driver in a separate process. It requests executors as a worker does, and checks the results
    directory, the data roots and Python on them.

    Returns no finding in local mode. The duration depends on the cluster and on the start of Spark.
    """
    if settings.spark.is_local:
        return []
    seconds = settings.spark.executor_wait_seconds + _CLUSTER_CHECK_SECONDS
    try:
        done = subprocess.run(  # noqa: S603 - a module of this project
            command,
            env=child_environment(settings, environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [_failed(f"the check did not end within {seconds:g} s")]
    lines = done.stdout.strip().splitlines()
    try:
        return [Finding(**{**found, "level": Level(found["level"])}) for found in json.loads(lines[-1])]
    except (IndexError, ValueError, TypeError, KeyError):
        output = (done.stderr or done.stdout).strip().splitlines()
        return [_failed(f"the check ended with exit code {done.returncode}: {output[-1] if output else 'no output'}")]


def _failed(what: str) -> Finding:
    return Finding("cluster", Level.FAIL, what, f"Run {' '.join(_PROBE[1:])} manually for details.")


def check_queues(settings: Settings) -> list[Finding]:
    """Checks that running workers listen to every queue; returns a finding for each queue without a worker.

    Returns no finding if no worker runs, or if the database is unavailable, which `check_database` reports.
    """
    if settings.database.url is None and not (settings.state_dir / "evenkeel.db").exists():
        return []
    try:
        with closing(Database(settings.database_url, settings=settings.database)) as database:
            require_current(database)
            with database.read() as session:
                alive_since = database.now(session) - worker_silence_ms(settings)
                if not workers.count_alive(session, alive_since):
                    return []
                served = queues_listened_to(session, alive_since)
    except database_errors():
        return []
    unserved = [queue for queue in EXPECTED_QUEUES if queue not in served]
    if not unserved:
        return [Finding("queues", Level.OK, "every queue has a worker")]
    return [
        Finding(
            "queues",
            Level.WARN,
            f"no worker that accepts jobs listens to the queue {queue}, so its jobs wait",
            QUEUE_ADVICE.format(queue),
        )
        for queue in unserved
    ]


def available_memory(membership: Path = _CGROUP_MEMBERSHIP, mount: Path = _CGROUP_MOUNT) -> Memory:
    """Returns the memory that this process can use: the machine's, or less if its control groups (version 1 or 2) have
    limits.

    The file `membership` names the groups, and `mount` is the directory with their files. A missing or unreadable file
    means no limit.
    """
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for files, group in _groups(membership, mount):
        limit = _number(group / files.limit)
        if limit is not None:
            used = (_number(group / files.usage) or 0) - _reclaimable(group / "memory.stat", files.reclaimable)
            total, available = min(total, limit), min(available, limit - used)
    return Memory(total, max(0, available))


def _groups(membership: Path, mount: Path) -> Iterator[tuple[_CgroupFiles, Path]]:
    """Yields the control group of the process and its parents, each of which may have a limit.

    In a container, the paths of the host do not exist, and the topmost visible group is that of the container.
    """
    for line in _lines(membership):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            version, top = _CGROUP_V1, mount / "memory"
        elif number == "0" and not controllers:
            version, top = _CGROUP_V2, mount
        else:
            continue
        group = Path(path.strip().lstrip("/"))
        for part in (group, *group.parents) if group.parts else (group,):
            yield version, top / part


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None  # "max" means no limit


def _reclaimable(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines(path) if line.startswith(f"{name} ")), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def is_s3a_missing(settings: Settings) -> bool:
    """Whether a data root is a bucket and neither Spark's jars nor the configured properties contain an S3 client.

    False without pyspark, since the workers then run on other machines. pyspark itself has no client for object stores.
    """
    if not any(isinstance(root, StoreRoot) and root.store.is_flat for root in roots_of(settings)):
        return False
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or any((Path(spec.origin).parent / "jars").glob("hadoop-aws*.jar")):
        return False
    try:
        properties = read_properties(settings.spark.properties_file)
    except SparkPropertiesError:  # reported by check_properties
        return False
    return not any(properties.get(name) for name in _JAR_PROPERTIES)
