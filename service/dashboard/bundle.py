"""The dashboard's files, read once, with a version for their addresses and a compressed form."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

INDEX = "index.html"
_VERSION_MARK = b"{{version}}"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# A smaller file fits into one packet without compression.
_MIN_COMPRESSED_BYTES = 1024


@dataclass(frozen=True)
class Asset:
    """A file as it is sent."""

    content: bytes
    content_type: str
    etag: str
    """Weak, because the plain and the compressed form have the same tag."""
    compressed: bytes | None
    """`content` compressed by gzip; None for a small file."""


@dataclass(frozen=True)
class Bundle:
    """All files of the dashboard."""

    version: str
    """A hash of all files: 16 lower-case hexadecimal digits."""
    assets: dict[str, Asset]
    """By path, such as `js/main.js`; the page is `index.html`."""


@cache
def bundle() -> Bundle:
    """Returns the files of the installed package. Raises KeyError for a file whose extension is not in `_TYPES`."""
    contents = dict(sorted(_read(files("service.dashboard") / "static", "").items()))
    digest = hashlib.sha256()
    for path, content in contents.items():
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    version = digest.hexdigest()[:16]
    contents[INDEX] = contents[INDEX].replace(_VERSION_MARK, version.encode())
    return Bundle(version, {path: _asset(path, content) for path, content in contents.items()})


def _read(directory: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in directory.iterdir():
        if entry.is_dir():
            found |= _read(entry, f"{prefix}{entry.name}/")
        else:
            found[prefix + entry.name] = entry.read_bytes()
    return found


def _asset(path: str, content: bytes) -> Asset:
    kind = _TYPES[path[path.rindex(".") :]]
    compressed = gzip.compress(content, mtime=0) if len(content) >= _MIN_COMPRESSED_BYTES else None
    return Asset(content, kind, f'W/"{hashlib.sha256(content).hexdigest()[:32]}"', compressed)
