"""Why the database cannot be used, in one line, and what to do about it.

The memory that this process may take: the machine's, or less where a container or a service bounds it.

Whether Spark has the jars that data roots need. The pip distribution comes without those of object stores.

The checks behind `evenkeel doctor`: each looks at one thing and gives a finding with what to do.

What `evenkeel doctor` finds out about the Spark cluster, from a worker's driver in a process of its own.

What `evenkeel doctor` finds out about the workers that run: whether they listen to every queue.
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
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.broker.configuration import broker_fault, celery_config, is_embedded
from service.cli.startup import child_environment, listen
from service.client.terminal import CliError
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
from service.store.session import Database, DatabaseUrlError, sqlstate
from service.store.workers import queues_listened_to

WORTH_TELLING = (SQLAlchemyError, OSError, SchemaMismatchError, DatabaseUrlError)
"""What opening and asking a database may raise for reasons that its user can do something about."""

_URL = "EVENKEEL_DATABASE_URL"
_NOT_POSTGRESQL = f"What listens there seems not to be PostgreSQL: correct host and port in {_URL}."
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("password authentication failed", "no password supplied", 'role "'),
        f"Correct user and password in {_URL} (special characters as %XX), or EVENKEEL_DATABASE_PASSWORD.",
    ),
    (("pg_hba.conf",), "Let the server admit this user from this machine: its pg_hba.conf has no line for that."),
    (("does not exist",), f"Create the database (CREATE DATABASE …), or correct its name in {_URL}."),
    (("connection refused",), f"Start PostgreSQL, or correct host and port in {_URL}."),
    (("invalid response", "expected authentication request", "unsupported protocol"), _NOT_POSTGRESQL),
    (
        ("timeout expired", "server closed the connection"),
        f"Is it PostgreSQL that listens there, and does it take connections? Look at it, or correct {_URL}.",
    ),
    (("resolve host", "translate host name", "name or service"), f"Correct the host's name in {_URL}."),
    (
        ("too many clients", "remaining connection slots"),
        "Raise max_connections of the server, or run fewer processes.",
    ),
    (("permission denied",), "Make the user the owner of the database, or let it create tables in its schema."),
    (("unable to open database file",), f"Make its directory, writable for this user, or correct {_URL}."),
    (("file is not a database",), f"Move the file away, or correct {_URL}."),
    (("lock timeout",), "Somebody else is at a table for long, such as a backup: try again once that has ended."),
    (("readonly", "read-only"), "Make it writable for this user."),
)
"""What to do, by words of the driver's message; the first that fits."""

_OTHERWISE = f"Check {_URL}, or leave it unset for SQLite in the state directory."


def explain(error: Exception) -> tuple[str, str]:
    """What happened, and what to do about it; nothing where the first says that too."""
    if isinstance(error, SchemaMismatchError):
        return str(error), ""
    if isinstance(error, DatabaseUrlError):
        return str(error), f"Correct {_URL}."
    reason = _first_line(error)
    told = reason.lower()
    advice = next((advice for words, advice in _ADVICE if any(word in told for word in words)), _OTHERWISE)
    return f"the database cannot be used: {reason}", advice


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else None
    lines = str(cause or error).strip().splitlines() or [type(error).__name__]
    state = sqlstate(error) if isinstance(error, DBAPIError) else ""
    return f"{lines[0]} ({state})" if state else lines[0]


_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes in all, and bytes that can be had now."""

    total: int
    available: int


@dataclass(frozen=True)
class _Version:
    """Where a version of control groups has its files, and what they are called."""

    limit: str
    usage: str
    reclaimable: str
    """In `memory.stat`: pages of files, which the kernel drops first. They count as used."""


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("memory.max", "memory.current", "inactive_file")


def memory_at_hand(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> Memory:
    """The least of what the machine has and what each control group of this process allows, of version 1 or 2.

    `membership` names the groups; `mount` has their files. What is missing or says nothing bounds nothing.
    """
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for files, group in _groups(membership, mount):
        limit = _number(group / files.limit)
        if limit is not None:
            used = (_number(group / files.usage) or 0) - _reclaimable(group / "memory.stat", files.reclaimable)
            total, available = min(total, limit), min(available, limit - used)
    return Memory(total, max(0, available))


def _groups(membership: Path, mount: Path) -> Iterator[tuple[_Version, Path]]:
    """Every group, from that of the process up to the topmost: each has a limit of its own.

    In a container the topmost of those to be seen is the container's, under whatever path the membership names.
    """
    for line in _lines(membership):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            version, top = _V1, mount / "memory"
        elif number == "0" and not controllers:
            version, top = _V2, mount
        else:
            continue
        group = Path(path.strip().lstrip("/"))
        for part in (group, *group.parents) if group.parts else (group,):
            yield version, top / part


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _reclaimable(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines(path) if line.startswith(f"{name} ")), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


_NAMING_JARS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


def lacks_s3a(settings: Settings) -> bool:
    """Whether a root is a bucket, and neither Spark's own jars nor the operator's properties bring a client for it.

    False where pyspark is not installed: the workers are elsewhere then.
    """
    if not any(isinstance(root, StoreRoot) and root.store.is_flat for root in roots_of(settings)):
        return False
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or any((Path(spec.origin).parent / "jars").glob("hadoop-aws*.jar")):
        return False
    try:
        properties = read_properties(settings.spark.properties_file)
    except SparkPropertiesError:  # told where Spark's settings are checked
        return False
    return not any(properties.get(name) for name in _NAMING_JARS)


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
    if found.state in (SchemaState.EMPTY, SchemaState.OUTDATED):
        where = "has no tables yet" if found.revision is None else f"is at revision {found.revision}"
        advice = "Run `evenkeel migrate`; `evenkeel up` does so by itself."
        return Finding("database", Level.WARN, f"{kind}, {where}; this version needs {head_revision()}", advice)
    require_current(database)
    if found.state is SchemaState.COMPATIBLE:
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


_PROBE = (sys.executable, "-P", "-m", "workers.driver.diagnostics")
_BESIDE_WAITING_SECONDS = 240.0
"""For the driver's start, a few small jobs and the end, on a machine that is busy."""


def check_properties(settings: Settings) -> list[Finding]:
    """Whether the operator's Spark properties can be used; nothing where there are none."""
    path = settings.spark.properties_file
    if path is None:
        return []
    try:
        found = read_properties(path)
    except SparkPropertiesError as error:
        return [Finding("Spark properties", Level.FAIL, str(error), "Correct the file; a worker does not start so.")]
    return [Finding("Spark properties", Level.OK, f"{len(found)} in {path}")]


def check_cluster(settings: Settings, environment: Mapping[str, str], command: Sequence[str] = _PROBE) -> list[Finding]:
    """Takes executors as a worker does, tries results, data roots and Python on them, and gives them back.

    Nothing in local mode. Takes as long as the cluster and the start of Spark do.
    """
    if settings.spark.is_local:
        return []
    seconds = settings.spark.executor_wait_seconds + _BESIDE_WAITING_SECONDS
    try:
        done = subprocess.run(  # noqa: S603 - our own module
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
        said = (done.stderr or done.stdout).strip().splitlines()
        return [_failed(f"the check ended with {done.returncode}: {said[-1] if said else 'it said nothing'}")]


def _failed(what: str) -> Finding:
    return Finding("cluster", Level.FAIL, what, f"Run {' '.join(_PROBE[1:])} by hand: it says more.")


def check_queues(settings: Settings) -> list[Finding]:
    """One finding for each queue that no worker listens to, or one for all; nothing while no worker runs.

    Nothing either where the database cannot tell: that is a finding of its own.
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
                heard = queues_listened_to(session, alive_since)
    except WORTH_TELLING:
        return []
    unheard = [queue for queue in EXPECTED_QUEUES if queue not in heard]
    if not unheard:
        return [Finding("queues", Level.OK, "every queue has a worker that listens to it")]
    return [
        Finding(
            "queues",
            Level.WARN,
            f"no worker that takes jobs listens to the queue {queue}: its jobs wait",
            QUEUE_ADVICE.format(queue),
        )
        for queue in unheard
    ]
