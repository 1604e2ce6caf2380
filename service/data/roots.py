"""Data roots and sink roots: local directories, and stores (S3, HDFS) that are accessed through Arrow.

Arrow lists a directory as a whole: the listing can neither be stopped nor limited. So each listing runs in a thread of
its own with a timeout, and one that exceeds it keeps running there until its last request has been answered. Errors of
stores are translated into PermissionError, FileNotFoundError and StoreUnavailableError.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from service.config.data import DataSettings, Location, is_uri, parse_root, split_roots
from service.config.settings import Settings
from service.contract.job import DeltaSink, FileSink, Sink
from service.contract.problems import Issue

_log = logging.getLogger(__name__)
PARALLEL_LISTINGS = 16
"""Concurrent listings of a store, including those that exceeded their timeout."""
T = TypeVar("T")
_AWS_CODE = re.compile(r"AWS Error ([A-Z_]+)")
_CREDENTIAL_CODES = frozenset(
    {
        *("INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID", "UNRECOGNIZED_CLIENT"),
        *("INCOMPLETE_SIGNATURE", "INVALID_SIGNATURE", "MISSING_AUTHENTICATION_TOKEN", "MISSING_AUTHENTICATION"),
        *("REQUEST_EXPIRED", "REQUEST_TIME_TOO_SKEWED", "NOT_INITIALIZED"),
    }
)
_BUSY_CODES = frozenset({"SLOW_DOWN", "THROTTLING", "SERVICE_UNAVAILABLE", "REQUEST_TIMEOUT", "INTERNAL_FAILURE"})
_DENIED_CODES = frozenset({"ACCESS_DENIED", "OPT_IN_REQUIRED", "ACCOUNT_PROBLEM"})
_NATIVE_LIBRARIES = ("libjvm", "libhdfs")
_PORT = re.compile(r":(\d+)$")
_HDFS_FAILED = re.compile(r"\bHDFS [a-z ]+ failed\b")
_PATH_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
FAILED_CONNECT_SECONDS = 5.0
"""How long a failed connect is cached: requests in that time fail at once instead of all waiting for the store."""
_S3A_PREFIX = "spark.hadoop.fs.s3a."


class OverdueError(Exception):
    """The listing exceeded its timeout."""


class Listings:
    """The running listings of one store. Safe to share between threads."""

    def __init__(self, parallel: int = PARALLEL_LISTINGS) -> None:
        self._places = threading.BoundedSemaphore(parallel)
        self._lock = threading.Lock()
        self._overdue: set[str] = set()

    def within(self, seconds: float, path: str, listing: Callable[[], T]) -> T:
        """Returns or raises what `listing` of the directory `path` does; raises OverdueError if it takes longer than
        `seconds`.

        Raises OverdueError at once if an earlier listing of that directory exceeded its timeout and is still running,
        so that repeated requests for a directory occupy no more than one thread.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            if path in self._overdue:
                raise OverdueError
        if seconds <= 0 or not self._places.acquire(timeout=seconds):
            raise OverdueError
        answer: Future[T] = Future()
        # A daemon thread, since the threads of a pool would keep the process from ending.
        thread = threading.Thread(
            target=copy_context().run, args=(self._list, path, listing, answer), name="listing", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._places.release()
            raise
        try:
            return answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            with self._lock:
                if not answer.done():
                    self._overdue.add(path)
                    raise OverdueError from None
            return answer.result()  # it ended at the last moment, or raised TimeoutError itself

    def _list(self, path: str, listing: Callable[[], T], answer: Future[T]) -> None:
        try:
            found = listing()
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            with self._lock:
                self._overdue.discard(path)
                answer.set_exception(error)
        else:
            with self._lock:
                self._overdue.discard(path)
                answer.set_result(found)
        finally:
            self._places.release()


class StoreUnavailableError(Exception):
    """A store cannot be used, whatever the path: it does not answer, refuses the credentials, or lacks the bucket.

    The message describes the error to clients without naming the store; `advice` is for the operator.
    """

    code = "storage_unavailable"

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.advice = advice


class ListingOverdueError(StoreUnavailableError):
    """The listing of a directory took too long: it has too many entries, or the store is slow."""

    def __init__(self) -> None:
        super().__init__(
            "Listing a directory of a data root's store took too long: it has too many entries, or the store is slow.",
            "Name a directory with fewer entries, or increase EVENKEEL_DATA_STORE_SEARCH_SECONDS.",
        )


@dataclass(frozen=True)
class Child:
    """A file or directory in a listing. `size` is in bytes, 0 for a directory. `modified` is in nanoseconds since the
    epoch, None if the store does not report it.
    """

    name: str
    is_file: bool
    is_directory: bool
    size: int
    modified: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Store:
    """A file system of Arrow, connected on first use. Safe to share between threads.

    Every method raises PermissionError, StoreUnavailableError, or OSError for other errors.
    """

    location: Location
    """The bucket or file system."""
    connect: Callable[[], fs.FileSystem] = field(repr=False, compare=False)
    is_flat: bool = False
    """Whether it is an object store, which has names of objects but no directories: existence then requires a listing.
    """
    search_seconds: float = 30.0
    """Time limit for finding the files of a table."""
    delta_options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Options of `deltalake` for the store; None if it does not read from such a store."""
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _made: list[fs.FileSystem] = field(default_factory=list, init=False, repr=False, compare=False)
    _failed: list[tuple[float, StoreUnavailableError]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _listings: Listings = field(default_factory=Listings, init=False, repr=False, compare=False)

    def children(self, path: str, seconds: float | None = None) -> Iterator[Child] | None:
        """Returns the entries of a directory, unordered; None if it does not exist. One request lists a thousand
        entries.

        Raises ListingOverdueError after `seconds` (by default `search_seconds`), and what every method raises.
        """
        limit = self.search_seconds if seconds is None else seconds
        try:
            found = self._listings.within(limit, path, lambda: self._list(path))
        except OverdueError:
            raise ListingOverdueError from None
        # Lazily: a caller that stops at a limit does not wait until millions are converted.
        return None if found is None else map(_child, found)

    def _list(self, path: str) -> list[fs.FileInfo] | None:
        with self._translating():
            try:
                found: list[fs.FileInfo] = self._system().get_file_info(
                    fs.FileSelector(self._named(path), recursive=False)
                )
            except (FileNotFoundError, NotADirectoryError):
                self._check_presence()
                return None
        return found

    def entry(self, path: str) -> Child | None:
        """Returns the entry with exactly this name; None if it does not exist."""
        with self._translating():
            info = self._system().get_file_info(self._named(path))
            if info.type is not fs.FileType.NotFound:
                return _child(info)
            self._check_presence()
            return None

    def open(self, path: str) -> pa.NativeFile:
        """Opens the file for random access. Raises FileNotFoundError if it has been removed."""
        with self._translating():
            return self._system().open_input_file(self._named(path))

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except _PATH_ERRORS:
            raise
        except OSError as error:
            if self.location.scheme != "hdfs":
                raise
            # Java exceptions arrive as plain OSErrors; most are about the name node, and none about a path.
            _log.warning("a store failed: %s", str(error).split("\n", 1)[0][:500])
            raise _hdfs_unavailable() from None

    def _check_presence(self) -> None:
        """Raises StoreUnavailableError if HDFS does not find its own root. Arrow reports any failed look-up as a
        missing file, including failures of an HDFS that went down after the connect.
        """
        if self.location.scheme == "hdfs" and self._system().get_file_info("/").type is fs.FileType.NotFound:
            raise _hdfs_unavailable()

    def _named(self, path: str) -> str:
        if self.location.scheme in {"s3", "s3a"}:
            return f"{self.location.authority}/{path}" if path else self.location.authority
        return f"/{path}"

    def _system(self) -> fs.FileSystem:
        # Each store has its own lock, so connecting to one does not block others.
        with self._lock:
            if not self._made:
                self._made.append(self._connected())
            return self._made[0]

    def _connected(self) -> fs.FileSystem:
        if self._failed:
            when, known = self._failed[0]
            if self.clock() - when < FAILED_CONNECT_SECONDS:
                raise StoreUnavailableError(str(known), known.advice)
            self._failed.clear()
        try:
            with self._translating():
                return self.connect()
        except StoreUnavailableError as error:
            self._failed.append((self.clock(), error))
            raise


@contextmanager
def translated() -> Iterator[None]:
    """Translates Arrow's errors for a store into PermissionError, FileNotFoundError or StoreUnavailableError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        translation = _translation(error)
        if translation is None:
            raise
        _log.warning("a store failed: %s", str(error).split("\n", 1)[0][:500])
        raise translation from None


def _translation(error: Exception) -> Exception | None:
    text = str(error)
    found = _AWS_CODE.search(text)
    if found is None:
        return _hdfs_translation(text) if not isinstance(error, FileNotFoundError | PermissionError) else None
    code = found[1]
    if code in {"NO_SUCH_KEY", "RESOURCE_NOT_FOUND"}:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if code in _DENIED_CODES:
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if code == "NO_SUCH_BUCKET":
        return StoreUnavailableError(
            "The bucket of a data root does not exist.", "Create the bucket, or correct EVENKEEL_DATA_ROOTS."
        )
    if code in _CREDENTIAL_CODES:
        return StoreUnavailableError(
            f"The store of a data root refuses the service's credentials ({code}).",
            "Correct EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY, or the credentials that the AWS "
            "default chain finds.",
        )
    if "configured region" in text:
        return StoreUnavailableError(
            "The bucket of a data root is in another region.", "Set EVENKEEL_DATA_S3_REGION to the bucket's region."
        )
    if code in _BUSY_CODES:
        return StoreUnavailableError(
            f"The store of a data root is overloaded or failing ({code}).", "Check the store, and try again."
        )
    return StoreUnavailableError(
        f"The store of a data root does not answer ({code}).",
        "Start it, or correct EVENKEEL_DATA_S3_ENDPOINT and EVENKEEL_DATA_S3_REGION.",
    )


def _hdfs_translation(text: str) -> StoreUnavailableError | None:
    if any(library in text for library in _NATIVE_LIBRARIES):
        return StoreUnavailableError(
            "HDFS requires Hadoop's native client, which is not installed.",
            "Install Java and Hadoop where API and workers run; set JAVA_HOME, HADOOP_HOME (or ARROW_LIBHDFS_DIR) and "
            "CLASSPATH (`hadoop classpath --glob`).",
        )
    return _hdfs_unavailable() if _HDFS_FAILED.search(text) else None


def _hdfs_unavailable() -> StoreUnavailableError:
    return StoreUnavailableError(
        "The HDFS of a data root does not answer.", "Start its name node, or correct EVENKEEL_DATA_ROOTS."
    )


def _child(info: fs.FileInfo) -> Child:
    is_file = info.type is fs.FileType.File
    size = (info.size or 0) if is_file else 0
    return Child(info.base_name, is_file, info.type is fs.FileType.Directory, size, info.mtime_ns)


def connect_s3(settings: DataSettings) -> fs.FileSystem:
    """Returns Arrow's S3 client. Sends no request yet, unless the AWS chain gets its credentials from the instance."""
    options: dict[str, Any] = {
        "connect_timeout": settings.store_connect_timeout_seconds,
        "request_timeout": settings.store_request_timeout_seconds,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=settings.store_attempts),
    }
    if settings.s3_region:
        options["region"] = settings.s3_region
    if settings.s3_endpoint:
        options["scheme"], _, options["endpoint_override"] = settings.s3_endpoint.partition("://")
        options["force_virtual_addressing"] = not settings.s3_path_style
    if settings.s3_access_key is not None and settings.s3_secret_key is not None:
        options["access_key"] = settings.s3_access_key.get_secret_value()
        options["secret_key"] = settings.s3_secret_key.get_secret_value()
    if settings.s3_ca_file is not None:
        options["tls_ca_file_path"] = str(settings.s3_ca_file)
    return fs.S3FileSystem(**options)


def connect_hdfs(location: Location, settings: DataSettings) -> fs.FileSystem:
    """Returns Arrow's HDFS client, which requires Java and libhdfs. Connects at once."""
    port = _PORT.search(location.authority)
    host = _PORT.sub("", location.authority)
    milliseconds = {
        "ipc.client.connect.timeout": settings.store_connect_timeout_seconds,
        "ipc.client.rpc-timeout.ms": settings.store_request_timeout_seconds,
    }
    single_retry = dict.fromkeys(("ipc.client.connect.max.retries", "ipc.client.connect.max.retries.on.timeouts"), "1")
    return fs.HadoopFileSystem(
        host or "default",
        int(port[1]) if port else 0,  # a logical name has no port
        extra_conf={**single_retry, **{name: str(round(1000 * seconds)) for name, seconds in milliseconds.items()}},
    )


def s3a_properties(settings: DataSettings) -> dict[str, str]:
    """Returns Spark properties for S3A: endpoint, region, path style and TLS if configured; empty if no root is a
    bucket.

    Credentials are left out on purpose: they would be visible in the configuration of every application. Spark uses its
    own credential chain, or a provider from the operator's properties file.

    >>> s3a_properties(DataSettings(roots="s3a://data", s3_endpoint="http://minio:9000"))["spark.hadoop.fs.s3a.endpoint"]
    'http://minio:9000'
    """
    schemes = {parse_root(part).scheme for part in split_roots(settings.roots) if is_uri(part)}
    if not schemes & {"s3", "s3a"}:
        return {}
    properties_by_suffix = {}
    if settings.s3_endpoint:
        properties_by_suffix["endpoint"] = settings.s3_endpoint
        properties_by_suffix["path.style.access"] = str(settings.s3_path_style).lower()
        properties_by_suffix["connection.ssl.enabled"] = str(settings.s3_endpoint.startswith("https:")).lower()
    if settings.s3_region:
        properties_by_suffix["endpoint.region"] = settings.s3_region
    properties = {_S3A_PREFIX + name: value for name, value in properties_by_suffix.items()}
    if "s3" in schemes:
        # Hadoop has no file system for `s3`; distributions that have one set it in the operator's properties.
        properties["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    return properties


@dataclass(frozen=True)
class DirectoryRoot:
    """A local directory that is configured as `file:///…`, so that its files are identified by URIs."""

    path: Path


@dataclass(frozen=True)
class StoreRoot:
    """A bucket, or a directory in a store."""

    location: Location
    store: Store


Root = Path | DirectoryRoot | StoreRoot
"""A plain path is a directory whose files are identified by paths. Spark receives URIs in both cases."""


@lru_cache(maxsize=16)
def roots_of(settings: Settings) -> tuple[Root, ...]:
    """Returns the configured roots in order. Cached by settings, so that connections are reused. Does not connect."""
    stores: dict[str, Store] = {}
    return tuple(
        Path(name) if isinstance(name, Path) else _root(parse_root(name), settings.data, stores)
        for name in settings.data_root_names
    )


def _root(location: Location, settings: DataSettings, stores: dict[str, Store]) -> Root:
    if location.scheme == "file":
        return DirectoryRoot(Path("/" + location.path))
    store = stores.get(location.store)
    if store is None:
        store = stores[location.store] = open_store(location, settings)
    return StoreRoot(location, store)


def open_store(location: Location, settings: DataSettings) -> Store:
    """Returns the store that contains `location`."""
    whole = Location(location.scheme, location.authority, ())
    if location.scheme == "hdfs":
        return Store(whole, partial(connect_hdfs, whole, settings), search_seconds=settings.store_search_seconds)
    return Store(
        whole,
        partial(connect_s3, settings),
        is_flat=True,
        search_seconds=settings.store_search_seconds,
        delta_options=_delta_options(settings),
    )


def _delta_options(settings: DataSettings) -> dict[str, str]:
    options = {
        "timeout": f"{round(settings.store_request_timeout_seconds)}s",
        "connect_timeout": f"{round(settings.store_connect_timeout_seconds)}s",
        "aws_virtual_hosted_style_request": str(not settings.s3_path_style).lower(),
    }
    if settings.s3_region:
        options["aws_region"] = settings.s3_region
    if settings.s3_endpoint:
        options["aws_endpoint_url"] = settings.s3_endpoint
        options["aws_allow_http"] = str(settings.s3_endpoint.startswith("http:")).lower()
    if settings.s3_access_key is not None and settings.s3_secret_key is not None:
        options["aws_access_key_id"] = settings.s3_access_key.get_secret_value()
        options["aws_secret_access_key"] = settings.s3_secret_key.get_secret_value()
    return options


def find_sink_directory(given: str, roots: Sequence[Path]) -> Path | None:
    """Returns the path below the first root, or an absolute path if it is inside any root; else None. Links are
    resolved.
    """
    for root in roots:
        base = Path(os.path.realpath(root))
        path = Path(os.path.realpath(base / given))
        if path != base and path.is_relative_to(base):
            return path
    return None


def issues_of_sink(sink: Sink, roots: Sequence[Path]) -> tuple[Issue, ...]:
    """Returns `path_outside_sink_roots` if the sink's path is outside. Without roots here nothing is checked: only
    workers may have some.

    If API and workers both have sink roots, they must be the same directories with the same links.
    """
    if not isinstance(sink, DeltaSink | FileSink) or not roots or find_sink_directory(sink.path, roots) is not None:
        return ()
    return (Issue(code="path_outside_sink_roots", detail=outside(sink.path), pointer="/sink/path"),)


def outside(given: str) -> str:
    """Returns the message for a path outside the sink roots."""
    return (
        f"'{given}' is not inside a directory that sinks may write to (EVENKEEL_DATA_SINK_ROOTS). Use a relative path "
        "without '..'."
    )
