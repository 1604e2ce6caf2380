"""Listings that are waited for no longer than a given time.

Arrow lists a directory as a whole: it can neither be stopped nor told to end after so many entries. A listing that
takes too long is therefore left to itself, in a thread of its own, until its last request has been answered.

Stores of objects and HDFS: listed, looked at and opened through Arrow, with errors that are told apart.

What Spark's own S3 client is told, so that it asks the same store as the service. Without credentials.

The data roots of this service: directories of this machine, and places in stores.

Where sinks write files: below the directories that are set up for that.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
from service.contract.job import DeltaSink, ParquetSink, Sink
from service.contract.problems import Issue

AT_ONCE = 16
"""Listings of a store that are under way at the same time, those included that nobody waits for any more."""

T = TypeVar("T")


class OverdueError(Exception):
    """The listing did not end in time."""


class Listings:
    """The listings of one store. Safe to share between threads."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._overdue: set[str] = set()

    def within(self, seconds: float, path: str, listing: Callable[[], T]) -> T:
        """What `listing` of the directory `path` gives, or what it raises; OverdueError where it takes longer.

        At once where an earlier one of that directory took too long and has not ended yet: jobs that ask for a
        directory again and again keep no more than one listing of it busy.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            if path in self._overdue:
                raise OverdueError
        if seconds <= 0 or not self._places.acquire(timeout=seconds):
            raise OverdueError
        answer: Future[T] = Future()
        # A daemon, and no pool, whose threads would keep a process from ending.
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
            return answer.result()  # it ended at the last moment, or raised this error itself

    def _list(self, path: str, listing: Callable[[], T], answer: Future[T]) -> None:
        try:
            found = listing()
        except BaseException as error:  # noqa: BLE001 - told to the one who waits
            with self._lock:
                self._overdue.discard(path)
                answer.set_exception(error)
        else:
            with self._lock:
                self._overdue.discard(path)
                answer.set_result(found)
        finally:
            self._places.release()


_log = logging.getLogger(__name__)

_AWS_CODE = re.compile(r"AWS Error ([A-Z_]+)")
_CREDENTIALS = frozenset(
    {
        *("INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID", "UNRECOGNIZED_CLIENT"),
        *("INCOMPLETE_SIGNATURE", "INVALID_SIGNATURE", "MISSING_AUTHENTICATION_TOKEN", "MISSING_AUTHENTICATION"),
        *("REQUEST_EXPIRED", "REQUEST_TIME_TOO_SKEWED", "NOT_INITIALIZED"),
    }
)
_BUSY = frozenset({"SLOW_DOWN", "THROTTLING", "SERVICE_UNAVAILABLE", "REQUEST_TIMEOUT", "INTERNAL_FAILURE"})
_DENIED = frozenset({"ACCESS_DENIED", "OPT_IN_REQUIRED", "ACCOUNT_PROBLEM"})
_NO_JAVA = ("libjvm", "libhdfs")
_PORT = re.compile(r":(\d+)$")
_HDFS_FAILED = re.compile(r"\bHDFS [a-z ]+ failed\b")
_OF_THE_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)

FAILED_CONNECT_SECONDS = 5.0
"""So long a failed connect is believed: requests that come meanwhile are told at once, and do not all wait for it."""


class StoreUnavailableError(Exception):
    """A store cannot be used now, whatever the path: it does not answer, refuses the credentials or lacks the bucket.

    The message tells callers what is wrong without naming the store; `advice` tells its operator what to do.
    """

    code = "storage_unavailable"

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.advice = advice


class ListingOverdueError(StoreUnavailableError):
    """A directory was not listed in time: it has very many entries, or the store is slow."""

    def __init__(self) -> None:
        super().__init__(
            "A directory of the store behind a data root was not listed in time: it has very many entries, or the "
            "store is slow.",
            "Name a directory with fewer entries, or raise EVENKEEL_DATA_STORE_SEARCH_SECONDS.",
        )


@dataclass(frozen=True)
class Child:
    """What a listing tells of a file or directory; `size` in bytes, 0 for a directory. `modified` is in nanoseconds
    since the epoch, None where the store does not tell.
    """

    name: str
    is_file: bool
    is_directory: bool
    size: int
    modified: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Store:
    """One file system of Arrow's, made when it is first needed. Safe to share between threads.

    Every method raises PermissionError, StoreUnavailableError, or OSError for what is neither.
    """

    location: Location
    """Of the bucket or file system itself."""
    connect: Callable[[], fs.FileSystem] = field(repr=False, compare=False)
    is_flat: bool = False
    """Whether it knows names of objects alone: a listing then tells what asking for a directory does not."""
    search_seconds: float = 30.0
    """How long finding the files of a table may take."""
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _made: list[fs.FileSystem] = field(default_factory=list, init=False, repr=False, compare=False)
    _failed: list[tuple[float, StoreUnavailableError]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _listings: Listings = field(default_factory=Listings, init=False, repr=False, compare=False)

    def children(self, path: str, seconds: float | None = None) -> Iterator[Child] | None:
        """What is directly in the directory, in no order; None if there is none. One request for a thousand entries.

        Raises ListingOverdueError after `seconds`, by default the store's own, and what every method raises.
        """
        limit = self.search_seconds if seconds is None else seconds
        try:
            found = self._listings.within(limit, path, lambda: self._list(path))
        except OverdueError:
            raise ListingOverdueError from None
        # One by one: whoever counts need not wait until millions are made.
        return None if found is None else map(_child, found)

    def _list(self, path: str) -> list[fs.FileInfo] | None:
        with self._asked():
            try:
                found: list[fs.FileInfo] = self._system().get_file_info(
                    fs.FileSelector(self._named(path), recursive=False)
                )
            except (FileNotFoundError, NotADirectoryError):
                self._check_presence()
                return None
        return found

    def look(self, path: str) -> Child | None:
        """What is there under this very name."""
        with self._asked():
            info = self._system().get_file_info(self._named(path))
            if info.type is not fs.FileType.NotFound:
                return _child(info)
            self._check_presence()
            return None

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read at any position. FileNotFoundError when it has gone."""
        with self._asked():
            return self._system().open_input_file(self._named(path))

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except _OF_THE_PATH:
            raise
        except OSError as error:
            if self.location.scheme != "hdfs":
                raise
            # Java's exceptions come as plain errors, most of them about the name node and none about a path.
            _log.warning("a store failed: %s", str(error).split("\n", 1)[0][:500])
            raise _hdfs_is_away() from None

    def _check_presence(self) -> None:
        """Raises StoreUnavailableError where HDFS finds not even its own root: Arrow takes each failure to look at
        something for its absence, that of an HDFS which went away after it was connected to as well."""
        if self.location.scheme == "hdfs" and self._system().get_file_info("/").type is fs.FileType.NotFound:
            raise _hdfs_is_away()

    def _named(self, path: str) -> str:
        if self.location.scheme in {"s3", "s3a"}:
            return f"{self.location.authority}/{path}" if path else self.location.authority
        return f"/{path}"

    def _system(self) -> fs.FileSystem:
        # The lock is this store's own: others are connected to meanwhile.
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
            with self._asked():
                return self.connect()
        except StoreUnavailableError as error:
            self._failed.append((self.clock(), error))
            raise


@contextmanager
def translated() -> Iterator[None]:
    """Turns what Arrow raises for a store into PermissionError, FileNotFoundError or StoreUnavailableError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        told = _translation(error)
        if told is None:
            raise
        _log.warning("a store failed: %s", str(error).split("\n", 1)[0][:500])
        raise told from None


def _translation(error: Exception) -> Exception | None:
    text = str(error)
    found = _AWS_CODE.search(text)
    if found is None:
        return _hdfs_translation(text) if not isinstance(error, FileNotFoundError | PermissionError) else None
    code = found[1]
    if code in {"NO_SUCH_KEY", "RESOURCE_NOT_FOUND"}:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if code in _DENIED:
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if code == "NO_SUCH_BUCKET":
        return StoreUnavailableError(
            "The bucket behind a data root does not exist.", "Make the bucket, or correct EVENKEEL_DATA_ROOTS."
        )
    if code in _CREDENTIALS:
        return StoreUnavailableError(
            f"The store behind a data root refuses the service's credentials ({code}).",
            "Correct EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY, or what the AWS default chain finds.",
        )
    if "configured region" in text:
        return StoreUnavailableError(
            "The bucket behind a data root is in another region.", "Set EVENKEEL_DATA_S3_REGION to the bucket's region."
        )
    if code in _BUSY:
        return StoreUnavailableError(
            f"The store behind a data root is overloaded or out of order ({code}).", "Look at the store; try again."
        )
    return StoreUnavailableError(
        f"The store behind a data root does not answer ({code}).",
        "Start it, or correct EVENKEEL_DATA_S3_ENDPOINT and EVENKEEL_DATA_S3_REGION.",
    )


def _hdfs_translation(text: str) -> StoreUnavailableError | None:
    if any(library in text for library in _NO_JAVA):
        return StoreUnavailableError(
            "HDFS needs Hadoop's native client, which this service has not.",
            "Install Java and Hadoop where API and workers run; set JAVA_HOME, HADOOP_HOME (or ARROW_LIBHDFS_DIR) and "
            "CLASSPATH (`hadoop classpath --glob`).",
        )
    return _hdfs_is_away() if _HDFS_FAILED.search(text) else None


def _hdfs_is_away() -> StoreUnavailableError:
    return StoreUnavailableError(
        "The HDFS behind a data root does not answer.", "Start its name node, or correct EVENKEEL_DATA_ROOTS."
    )


def _child(info: fs.FileInfo) -> Child:
    is_file = info.type is fs.FileType.File
    size = (info.size or 0) if is_file else 0
    return Child(info.base_name, is_file, info.type is fs.FileType.Directory, size, info.mtime_ns)


def connect_s3(settings: DataSettings) -> fs.FileSystem:
    """Arrow's client of S3. Nothing is asked yet, unless the AWS chain asks the machine for its credentials."""
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
    """Arrow's client of HDFS, which needs Java and libhdfs. Connects at once."""
    port = _PORT.search(location.authority)
    host = _PORT.sub("", location.authority)
    milliseconds = {
        "ipc.client.connect.timeout": settings.store_connect_timeout_seconds,
        "ipc.client.rpc-timeout.ms": settings.store_request_timeout_seconds,
    }
    few = dict.fromkeys(("ipc.client.connect.max.retries", "ipc.client.connect.max.retries.on.timeouts"), "1")
    return fs.HadoopFileSystem(
        host or "default",
        int(port[1]) if port else 0,  # a logical name has none
        extra_conf={**few, **{name: str(round(1000 * seconds)) for name, seconds in milliseconds.items()}},
    )


_PREFIX = "spark.hadoop.fs.s3a."


def s3a_properties(settings: DataSettings) -> dict[str, str]:
    """Spark properties by name: endpoint, region, path style and TLS as far as they are configured; empty where no root
    is a bucket.

    Keys are left out on purpose: they would be in the configuration of every application. Spark finds credentials by
    its own chain, or where the operator's properties file names a provider.

    >>> s3a_properties(DataSettings(roots="s3a://data", s3_endpoint="http://minio:9000"))["spark.hadoop.fs.s3a.endpoint"]
    'http://minio:9000'
    """
    schemes = {parse_root(part).scheme for part in split_roots(settings.roots) if is_uri(part)}
    if not schemes & {"s3", "s3a"}:
        return {}
    told = {}
    if settings.s3_endpoint:
        told["endpoint"] = settings.s3_endpoint
        told["path.style.access"] = str(settings.s3_path_style).lower()
        told["connection.ssl.enabled"] = str(settings.s3_endpoint.startswith("https:")).lower()
    if settings.s3_region:
        told["endpoint.region"] = settings.s3_region
    properties = {_PREFIX + name: value for name, value in told.items()}
    if "s3" in schemes:
        # Hadoop has no file system of that name; distributions that have one say so in the operator's properties.
        properties["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    return properties


@dataclass(frozen=True)
class DirectoryRoot:
    """A directory of this machine that is configured as `file:///…`, so that its files are known by their URIs."""

    path: Path


@dataclass(frozen=True)
class StoreRoot:
    """A bucket or a directory in a store, with all below it."""

    location: Location
    store: Store


Root = Path | DirectoryRoot | StoreRoot
"""A plain path is a directory whose files are known by their paths. Spark is told URIs of either."""


@lru_cache(maxsize=16)
def roots_of(settings: Settings) -> tuple[Root, ...]:
    """The configured roots in order, the same for the same settings, so that connections are kept. Makes none yet."""
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
    """The store that holds `location`."""
    whole = Location(location.scheme, location.authority, ())
    if location.scheme == "hdfs":
        return Store(whole, partial(connect_hdfs, whole, settings), search_seconds=settings.store_search_seconds)
    return Store(whole, partial(connect_s3, settings), is_flat=True, search_seconds=settings.store_search_seconds)


def find_sink_directory(given: str, roots: Sequence[Path]) -> Path | None:
    """Below the first root, or where an absolute path says, inside one; else None. Links are followed."""
    for root in roots:
        base = Path(os.path.realpath(root))
        path = Path(os.path.realpath(base / given))
        if path != base and path.is_relative_to(base):
            return path
    return None


def issues_of_sink(sink: Sink, roots: Sequence[Path]) -> tuple[Issue, ...]:
    """`path_outside_sink_roots`, where that is so. Without roots here nothing is known: workers may have some.

    Who has both, API and workers, is taken to have the same directories in them, and the same links.
    """
    if not isinstance(sink, DeltaSink | ParquetSink) or not roots or find_sink_directory(sink.path, roots) is not None:
        return ()
    return (Issue(code="path_outside_sink_roots", detail=outside(sink.path), pointer="/sink/path"),)


def outside(given: str) -> str:
    """What is wrong with a path that lies outside."""
    return f"'{given}' does not lie inside a directory that sinks may write to: those of EVENKEEL_DATA_SINK_ROOTS."
