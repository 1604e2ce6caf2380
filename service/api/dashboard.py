"""The dashboard's page and its files. They hold no data, so no key is asked for: the page asks with its user's own."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request, Response

from service.api.authentication import DASHBOARD_FILES, DASHBOARD_PAGE
from service.api.conditional import names_tag
from service.dashboard.bundle import INDEX, Asset, bundle
from service.errors import RouteNotFoundError

router = APIRouter(include_in_schema=False)

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.IGNORECASE)
"""An Accept-Encoding that takes gzip; not one that says `q=0`."""
_ASK_AGAIN = "no-cache"
_FOR_GOOD = "public, max-age=31536000, immutable"


@router.get(DASHBOARD_PAGE)
def show_dashboard(request: Request) -> Response:
    """The page."""
    return _answer(request, bundle().assets[INDEX], _ASK_AGAIN)


@router.get(DASHBOARD_FILES + "{version}/{path:path}")
def get_asset(version: str, path: str, request: Request) -> Response:
    """A file of the page. Raises RouteNotFoundError.

    In the midst of an upgrade another release may have sent the page: its files are answered with these, and not kept.
    """
    found = bundle().assets.get(path)
    if found is None or path == INDEX:
        raise RouteNotFoundError("The dashboard has no such file.")
    return _answer(request, found, _FOR_GOOD if version == bundle().version else _ASK_AGAIN)


def _takes_gzip(request: Request) -> bool:
    return _GZIP.search(",".join(request.headers.getlist("accept-encoding"))) is not None


def _answer(request: Request, asset: Asset, cache_control: str) -> Response:
    headers = {
        "Content-Security-Policy": _POLICY,
        "Cache-Control": cache_control,
        "ETag": asset.etag,
        "Vary": "Accept-Encoding",
    }
    if names_tag(request.headers.getlist("if-none-match"), asset.etag):
        return Response(status_code=304, headers=headers)
    if asset.compressed is not None and _takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.compressed, media_type=asset.content_type, headers=headers)
    return Response(asset.content, media_type=asset.content_type, headers=headers)
