"""Data roots: directories, and URIs of object stores and HDFS; and the settings of data, results and stores.

Nothing here reads a file or store. As in Hadoop, nothing in a URI is decoded, and `?` and `#` are characters of names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from pydantic import Field, SecretStr, field_validator, model_validator

from service.config import SettingsGroup, bounded, refusal

SCHEMES = ("s3a", "s3", "hdfs", "file")
"""Schemes of URIs that can be data roots."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAMENODE = re.compile(r"(?:(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?)?")
_THIS_MACHINE = frozenset({"", "localhost"})
_ENDPOINT = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Location:
    """A directory or file of a store. `authority` is the bucket, or a name node as `host:port`; empty for `file`.

    `parts` are the names of its path: none is empty, `.` or `..`, and none contains a slash.
    """

    scheme: str
    authority: str
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        """The path below the bucket or the root of the file system, without a slash at either end."""
        return "/".join(self.parts)

    @property
    def store(self) -> str:
        """The URI of the bucket or file system, without a slash at its end."""
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return f"{self.store}/{self.path}" if self.parts or not self.authority else self.store

    def is_within(self, other: Location) -> bool:
        """Returns whether it is `other` or below it. `s3` and `s3a` are the same store."""
        return (
            _kind(self.scheme) == _kind(other.scheme)
            and self.authority == other.authority
            and self.parts[: len(other.parts)] == other.parts
        )


class LocationError(ValueError):
    """A text that is no data root. The message says what to write instead, and repeats nothing that may be secret."""


def is_uri(text: str) -> bool:
    """Returns whether the text begins with a scheme, a colon and two slashes."""
    return _URI.match(text) is not None


def split_roots(text: str) -> tuple[str, ...]:
    """Splits a list of roots: at commas if any of them is a URI, else at path separators."""
    separator = "," if "://" in text else os.pathsep
    return tuple(
        part for part in (part.strip() if separator == "," else part for part in text.split(separator)) if part
    )


def join_roots(roots: Iterable[object]) -> str:
    """Returns the list that `split_roots` splits."""
    parts = [str(root) for root in roots]
    return ("," if any(map(is_uri, parts)) else os.pathsep).join(parts)


def parse_root(text: str) -> Location:
    """Returns the root of a URI. Raises LocationError for a URI that is not supported or that Spark cannot read."""
    found = _URI.fullmatch(text)
    if found is None:
        raise LocationError("a URI has the form scheme://…, such as s3a://bucket/prefix")
    scheme, authority, path = found[1].lower(), found[2], found[3]
    if scheme not in SCHEMES:
        raise LocationError(
            f"the scheme '{scheme}' is not supported: write a directory, or a URI of {', '.join(SCHEMES)}"
        )
    if "@" in authority:
        raise LocationError(
            "a root may not contain a user or password: "
            "set EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY, or use the AWS default chain"
        )
    _check_authority(scheme, authority)
    parts = _normalized(path)
    if parts is None or _UNPRINTABLE.search(path):
        raise LocationError(f"the path of a root of scheme '{scheme}' leads above its start or is not printable")
    if any(":" in part for part in parts):
        raise LocationError("Spark cannot read a path with a colon; if one root is a URI, separate the roots by commas")
    if scheme == "file" and not parts:
        raise LocationError("file:/// is the whole machine: name a directory, such as file:///data")
    return Location(scheme, "" if scheme == "file" else authority, parts)


def _check_authority(scheme: str, authority: str) -> None:
    if scheme == "file" and authority not in _THIS_MACHINE:
        raise LocationError("a root of scheme 'file' has three slashes, such as file:///data")
    if _kind(scheme) == "s3" and not _BUCKET.fullmatch(authority):
        raise LocationError(
            f"'{scheme}://' is followed by the name of a bucket (3 to 63 of a-z, 0-9, dot and hyphen), "
            "such as s3a://bucket/prefix"
        )
    if scheme == "hdfs" and not _NAMENODE.fullmatch(authority):
        raise LocationError("'hdfs://' is followed by the name node, such as hdfs://namenode:8020/path")


def path_of_file_uri(text: str) -> str | None:
    """Returns the absolute path of a URI of scheme `file`, not normalized; None for any other text."""
    found = _URI.fullmatch(text)
    if found is None or found[1].lower() != "file" or found[2] not in _THIS_MACHINE or not found[3]:
        return None
    return found[3]


def resolve(root: Location, given: str) -> Location | None:
    """Returns the location of `given`, a URI or a path relative to `root`; None if it is outside `root`.

    A name that would be outside if it were decoded (`%2e%2e`, `%2f`) is refused too, since a later reader may decode
    it.

    >>> str(resolve(parse_root("s3a://data/in"), "orders//2013/../2014"))
    's3a://data/in/orders/2014'
    >>> resolve(parse_root("s3a://data/in"), "s3a://data/in2") is None
    True
    """
    location = _located(root, given)
    decoded = unquote(given)
    if decoded != given:
        again = _located(root, decoded)
        if again is None or not again.is_within(root):
            return None
    return location if location is not None and location.is_within(root) else None


def _located(root: Location, given: str) -> Location | None:
    found = _URI.fullmatch(given)
    if found is None:
        below = None if given.startswith("/") else _normalized(given)
        return None if below is None else Location(root.scheme, root.authority, (*root.parts, *below))
    scheme, authority, path = found[1].lower(), found[2], found[3]
    parts = _normalized(path)
    if parts is None or _kind(scheme) != _kind(root.scheme):
        return None
    # The root's own scheme, for which Spark is configured.
    return Location(root.scheme, authority, parts)


def _normalized(path: str) -> tuple[str, ...] | None:
    """Returns the names of a path without `.`, `..` and empty ones; None if it leads above its start."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return tuple(parts)


def _kind(scheme: str) -> str:
    return "s3" if scheme == "s3a" else scheme


class DataSettings(SettingsGroup, env_prefix="EVENKEEL_DATA_"):
    """Which files jobs may read, how object stores are reached, and where results are stored."""

    roots: str = Field(
        default="",
        description="Directories that jobs may read, separated by the path separator, or by commas if any is a URI "
        "(`s3a://bucket/prefix`, `s3://…`, `hdfs://namenode:port/path`, `file:///path`); `data` in the state directory "
        "by default.",
    )
    results: Path | None = Field(
        default=None, description="Directory of results; `results` in the state directory by default."
    )
    streams: Path | None = Field(
        default=None,
        description="Directory of posted rows and of the state of streaming jobs, shared by API and workers; "
        "`streams` in the state directory by default.",
    )
    sink_roots: str = Field(
        default="",
        description="Directories below which sinks of streaming jobs may write Delta tables and Parquet files, "
        "separated by the path separator; none by default. All workers share them. An API with the same value refuses "
        "other paths at submission.",
    )
    s3_endpoint: str = Field(
        default="", description="Object store other than AWS, such as `https://minio:9000`; `http://` for no TLS."
    )
    s3_region: str = Field(
        default="", max_length=64, description="Region of the buckets; by default that of the AWS environment."
    )
    s3_path_style: bool = Field(
        default=True,
        description="With `s3_endpoint`, send the bucket as the first part of the path, not of the host's name.",
    )
    s3_access_key: SecretStr | None = Field(
        default=None,
        description="Access key of API and worker; by default the AWS chain: environment, profile, instance. "
        "Spark has its own credentials.",
    )
    s3_secret_key: SecretStr | None = Field(default=None, description="Secret key of the access key.")
    s3_ca_file: Path | None = Field(
        default=None, description="Certificates (PEM) of the CAs of the endpoint; by default those of the system."
    )
    store_connect_timeout_seconds: float = Field(
        default=2, gt=0, le=300, description="How long a connection to the store may take."
    )
    store_request_timeout_seconds: float = bounded(
        10, 1, 300, "How long a request waits for data from the store before it fails."
    )
    store_search_seconds: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="How long the search for the files of a table in a store may take before the job is refused.",
    )
    store_attempts: int = bounded(2, 1, 10, "How often a request to the store is sent at most.")

    @field_validator("roots")
    @classmethod
    def _roots_are_valid(cls, roots: str) -> str:
        for part in split_roots(roots):
            if is_uri(part):
                try:
                    parse_root(part)
                except LocationError as error:
                    raise refusal(str(error)) from None
        return roots

    @field_validator("s3_endpoint")
    @classmethod
    def _endpoint_is_an_address(cls, endpoint: str) -> str:
        if endpoint and not _ENDPOINT.fullmatch(endpoint):
            raise refusal("the endpoint must be http:// or https:// with host and port, such as https://minio:9000")
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _keys_come_in_pairs(self) -> Self:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise refusal("EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY belong together: set both")
        return self
