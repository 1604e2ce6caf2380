"""The routes of the dashboard, and its files, read once, with a version for their addresses and a compressed form.

They need no API key, because they contain no data: the page calls the API with the key of its user.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request, Response

from service.api.authentication import DASHBOARD_FILES, DASHBOARD_PAGE
from service.api.representations import has_tag
from service.contract.errors import RouteNotFoundError

router = APIRouter(include_in_schema=False)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.IGNORECASE)
"""An Accept-Encoding that accepts gzip; `gzip;q=0` does not match."""
_REVALIDATE = "no-cache"
_CACHE_FOREVER = "public, max-age=31536000, immutable"

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


@router.get(DASHBOARD_PAGE)
def show_dashboard(request: Request) -> Response:
    """Returns the page."""
    return _asset_response(request, bundle().assets[INDEX], _REVALIDATE)


@router.get(DASHBOARD_FILES + "{version}/{path:path}")
def get_asset(version: str, path: str, request: Request) -> Response:
    """Returns a file of the page. Raises RouteNotFoundError.

    During an upgrade, another release may have served the page: its requests get the files of this release, uncached.
    """
    found = bundle().assets.get(path)
    if found is None or path == INDEX:
        raise RouteNotFoundError("The dashboard has no such file.")
    return _asset_response(request, found, _CACHE_FOREVER if version == bundle().version else _REVALIDATE)


def _asset_response(request: Request, asset: Asset, cache_control: str) -> Response:
    headers = {
        "Content-Security-Policy": _POLICY,
        "Cache-Control": cache_control,
        "ETag": asset.etag,
        "Vary": "Accept-Encoding",
    }
    if has_tag(request.headers.getlist("if-none-match"), asset.etag):
        return Response(status_code=304, headers=headers)
    if asset.compressed is not None and _GZIP.search(",".join(request.headers.getlist("accept-encoding"))):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.compressed, media_type=asset.content_type, headers=headers)
    return Response(asset.content, media_type=asset.content_type, headers=headers)


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
