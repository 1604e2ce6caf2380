"""Where data may be: directories, and URIs of object stores and HDFS. Names alone, nothing is looked at.

A URI is taken literally, as Hadoop does: nothing in it is decoded, and `?` and `#` are characters of names.

Which files jobs may read, how stores of objects are reached, and where results go.
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
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

SCHEMES = ("s3a", "s3", "hdfs", "file")
"""Of URIs that may be data roots."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAMENODE = re.compile(r"(?:(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?)?")
_THIS_MACHINE = frozenset({"", "localhost"})
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Location:
    """A directory or file of a store. `authority` is the bucket, or a name node as `host:port`; empty for `file`.

    `parts` are the names on the way to it: none is empty, `.` or `..`, and none holds a slash.
    """

    scheme: str
    authority: str
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        """Below the bucket or the root of the file system, without a slash at either end."""
        return "/".join(self.parts)

    @property
    def store(self) -> str:
        """The URI of the bucket or file system itself, without a slash at its end."""
        return f"{self.scheme}://{self.authority}"

    def __str__(self) -> str:
        return f"{self.store}/{self.path}" if self.parts or not self.authority else self.store

    def is_within(self, other: Location) -> bool:
        """Whether it is `other` or below it. `s3` and `s3a` are the same store."""
        return (
            _kind(self.scheme) == _kind(other.scheme)
            and self.authority == other.authority
            and self.parts[: len(other.parts)] == other.parts
        )


class LocationError(ValueError):
    """A text that is no data root; the message says what to write instead, and repeats nothing that may be secret."""


def is_uri(text: str) -> bool:
    """Whether the text begins with a scheme and two slashes."""
    return _URI.match(text) is not None


def split_roots(text: str) -> tuple[str, ...]:
    """The parts of a list of roots: between commas where any part is a URI, else between path separators."""
    separator = "," if "://" in text else os.pathsep
    return tuple(
        part for part in (part.strip() if separator == "," else part for part in text.split(separator)) if part
    )


def join_roots(roots: Iterable[object]) -> str:
    """The list that `split_roots` takes apart again."""
    parts = [str(root) for root in roots]
    return ("," if any(map(is_uri, parts)) else os.pathsep).join(parts)


def parse_root(text: str) -> Location:
    """The root that a URI names. Raises LocationError for one that Spark could not read or that is not understood."""
    found = _URI.fullmatch(text)
    if found is None:
        raise LocationError("a URI has the form scheme://…, such as s3a://bucket/prefix")
    scheme, authority, path = found[1].lower(), found[2], found[3]
    if scheme not in SCHEMES:
        raise LocationError(
            f"the scheme '{scheme}' is not known: write a directory, or a URI of {', '.join(SCHEMES)} "
            "(other stores of Hadoop are not supported)"
        )
    if "@" in authority:
        raise LocationError(
            "a root has no user and no password in it: "
            "set EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY, or use the AWS default chain"
        )
    _check_authority(scheme, authority)
    parts = _normalized(path)
    if parts is None or _UNPRINTABLE.search(path):
        raise LocationError(f"the path of a root of scheme '{scheme}' leads above its beginning or is not printable")
    if any(":" in part for part in parts):
        raise LocationError("Spark reads no path with a colon in it; where one root is a URI, commas part the roots")
    if scheme == "file" and not parts:
        raise LocationError("file:/// would be the whole machine: name a directory, such as file:///data")
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
    """The absolute path that a URI of scheme `file` names, not normalized; None for any other text."""
    found = _URI.fullmatch(text)
    if found is None or found[1].lower() != "file" or found[2] not in _THIS_MACHINE or not found[3]:
        return None
    return found[3]


def resolve(root: Location, given: str) -> Location | None:
    """What `given`, relative to `root` or a whole URI, names inside `root`; None where that lies outside.

    A name that would lead out once more decoded (`%2e%2e`, `%2f`) is outside too: whoever reads it next may decode.

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
    # The root's own spelling of the scheme, which is the one that Spark is configured for.
    return Location(root.scheme, authority, parts)


def _normalized(path: str) -> tuple[str, ...] | None:
    """The names of a path without `.`, `..` and empty ones; None where it leads above its beginning."""
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


_ENDPOINT = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/?")


class DataSettings(BaseSettings):
    """Which files jobs may read, how stores of objects are reached, and where results go."""

    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_DATA_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    roots: str = Field(
        default="",
        description="Directories that jobs may read, separated by the path separator, or by commas where any is a URI "
        "(`s3a://bucket/prefix`, `s3://…`, `hdfs://namenode:port/path`, `file:///path`); `data` in the state directory "
        "by default.",
    )
    results: Path | None = Field(
        default=None, description="Directory of results; `results` in the state directory by default."
    )
    streams: Path | None = Field(
        default=None,
        description="Directory of posted rows and of streaming jobs' state; `streams` in the state directory by "
        "default. API and workers share it.",
    )
    sink_roots: str = Field(
        default="",
        description="Directories below which sinks of streaming jobs may write Delta tables and Parquet files, "
        "separated by the path separator; none by default. All workers share them; an API that has them too refuses "
        "other paths at once.",
    )
    s3_endpoint: str = Field(
        default="", description="Object store other than AWS, such as `https://minio:9000`; `http://` goes without TLS."
    )
    s3_region: str = Field(
        default="", max_length=64, description="Region of the buckets; by default what the AWS environment says."
    )
    s3_path_style: bool = Field(
        default=True,
        description="At an endpoint of your own, the bucket is the first part of the path and not of the host's name.",
    )
    s3_access_key: SecretStr | None = Field(
        default=None,
        description="Access key of API and worker; by default the AWS chain: environment, profile, instance. "
        "Spark has its own credentials.",
    )
    s3_secret_key: SecretStr | None = Field(default=None, description="Secret that belongs to the access key.")
    s3_ca_file: Path | None = Field(
        default=None, description="Certificates (PEM) of those who sign for the endpoint; the system's by default."
    )
    store_connect_timeout_seconds: float = Field(
        default=2, gt=0, le=300, description="How long a connection to the store may take."
    )
    store_request_timeout_seconds: float = Field(
        default=10, ge=1, le=300, description="A store that sends nothing for so long does not answer."
    )
    store_search_seconds: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="How long finding the files of a table in a store may take; longer, and the job is refused.",
    )
    store_attempts: int = Field(default=2, ge=1, le=10, description="How often a request to the store is sent at most.")

    @field_validator("roots")
    @classmethod
    def _roots_are_understood(cls, roots: str) -> str:
        for part in split_roots(roots):
            if is_uri(part):
                try:
                    parse_root(part)
                except LocationError as error:
                    raise PydanticCustomError("data_root", "{reason}", {"reason": str(error)}) from None
        return roots

    @field_validator("s3_endpoint")
    @classmethod
    def _endpoint_is_an_address(cls, endpoint: str) -> str:
        if endpoint and not _ENDPOINT.fullmatch(endpoint):
            raise PydanticCustomError(
                "s3_endpoint", "the endpoint must be http:// or https:// with host and port, such as https://minio:9000"
            )
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _keys_come_in_pairs(self) -> Self:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise PydanticCustomError(
                "s3_keys", "EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY belong together: set both"
            )
        return self
