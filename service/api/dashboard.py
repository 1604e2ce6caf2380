"""The routes of the dashboard's files. They need no API key, because they contain no data: the page calls the API with
the key of its user.
"""

from __future__ import annotations

import re

from fastapi import APIRouter, Request, Response

from service.api.authentication import DASHBOARD_FILES, DASHBOARD_PAGE
from service.api.representations import has_tag
from service.contract.errors import RouteNotFoundError
from service.dashboard.bundle import INDEX, Asset, bundle

router = APIRouter(include_in_schema=False)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.IGNORECASE)
"""An Accept-Encoding that accepts gzip; `gzip;q=0` does not match."""
_REVALIDATE = "no-cache"
_CACHE_FOREVER = "public, max-age=31536000, immutable"


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
