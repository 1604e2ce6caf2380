"""Stores of objects and HDFS: listed, looked at and opened through Arrow, with errors that are told apart."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import fs

from service.data_settings import DataSettings
from service.spec.locations import Location

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


class StorageUnavailableError(Exception):
    """A store cannot be used now, whatever the path: it does not answer, refuses the credentials or lacks the bucket.

    The message tells callers what is wrong without naming the store; `advice` tells its operator what to do.
    """

    code = "storage_unavailable"

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.advice = advice


@dataclass(frozen=True)
class Child:
    """What a listing tells of a file or directory; `size` in bytes, 0 for a directory."""

    name: str
    is_file: bool
    is_directory: bool
    size: int


@dataclass(frozen=True)
class Store:
    """One file system of Arrow's, made when it is first needed. Safe to share between threads.

    Every method raises PermissionError, StorageUnavailableError, or OSError for what is neither.
    """

    location: Location
    """Of the bucket or file system itself."""
    connect: Callable[[], fs.FileSystem] = field(repr=False, compare=False)
    is_flat: bool = False
    """Whether it knows names of objects alone: a listing then tells what asking for a directory does not."""
    _made: list[fs.FileSystem] = field(default_factory=list, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def children(self, path: str) -> list[Child] | None:
        """What is directly in the directory, by name; None if there is none. One request for a thousand entries."""
        with translated():
            try:
                found = self._system().get_file_info(fs.FileSelector(self._named(path), recursive=False))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return sorted((_child(info) for info in found), key=lambda child: child.name)

    def look(self, path: str) -> Child | None:
        """What is there under this very name."""
        with translated():
            info = self._system().get_file_info(self._named(path))
        return None if info.type is fs.FileType.NotFound else _child(info)

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read at any position. FileNotFoundError when it has gone."""
        with translated():
            return self._system().open_input_file(self._named(path))

    def _named(self, path: str) -> str:
        if self.location.scheme in {"s3", "s3a"}:
            return f"{self.location.authority}/{path}" if path else self.location.authority
        return f"/{path}"

    def _system(self) -> fs.FileSystem:
        with self._lock:
            if not self._made:
                self._made.append(self.connect())
            return self._made[0]


@contextmanager
def translated() -> Iterator[None]:
    """Turns what Arrow raises for a store into PermissionError, FileNotFoundError or StorageUnavailableError."""
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
        return StorageUnavailableError(
            "The bucket behind a data root does not exist.", "Make the bucket, or correct EVENKEEL_DATA_ROOTS."
        )
    if code in _CREDENTIALS:
        return StorageUnavailableError(
            f"The store behind a data root refuses the service's credentials ({code}).",
            "Correct EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY, or what the AWS default chain finds.",
        )
    if "configured region" in text:
        return StorageUnavailableError(
            "The bucket behind a data root is in another region.", "Set EVENKEEL_DATA_S3_REGION to the bucket's region."
        )
    if code in _BUSY:
        return StorageUnavailableError(
            f"The store behind a data root is overloaded or out of order ({code}).", "Look at the store; try again."
        )
    return StorageUnavailableError(
        f"The store behind a data root does not answer ({code}).",
        "Start it, or correct EVENKEEL_DATA_S3_ENDPOINT and EVENKEEL_DATA_S3_REGION.",
    )


def _hdfs_translation(text: str) -> StorageUnavailableError | None:
    if any(library in text for library in _NO_JAVA):
        return StorageUnavailableError(
            "HDFS needs Hadoop's native client, which this service has not.",
            "Install Java and Hadoop where API and workers run; set JAVA_HOME, HADOOP_HOME (or ARROW_LIBHDFS_DIR) and "
            "CLASSPATH (`hadoop classpath --glob`).",
        )
    if "HDFS connection failed" in text:
        return StorageUnavailableError(
            "The HDFS behind a data root does not answer.", "Start its name node, or correct EVENKEEL_DATA_ROOTS."
        )
    return None


def _child(info: fs.FileInfo) -> Child:
    is_file = info.type is fs.FileType.File
    return Child(info.base_name, is_file, info.type is fs.FileType.Directory, (info.size or 0) if is_file else 0)


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
