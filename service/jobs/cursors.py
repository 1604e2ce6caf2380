"""Opaque cursors: where a page ended, and of which list. A cursor of another list is refused, not misread."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json

from service.errors import InvalidCursorError

_MAX_LENGTH = 512
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


def encode_cursor(position: list[int | str], scope: str) -> str:
    """A cursor that goes on behind `position` in the list that `scope` (its filters as text) describes."""
    text = json.dumps([_digest(scope), *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, scope: str, shape: tuple[type, ...]) -> list[int | str]:
    """The position in `cursor`, its parts of the types in `shape`.

    Raises InvalidCursorError when the cursor was made by someone else or for another list.
    """
    try:
        if len(cursor) > _MAX_LENGTH:
            raise ValueError("too long")
        padded = cursor + "=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.") from error
    if not isinstance(parts, list) or [type(part) for part in parts] != [str, *shape]:
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.")
    if not all(_MIN_INTEGER <= part <= _MAX_INTEGER for part in parts if isinstance(part, int)):
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.")
    digest, *position = parts
    if digest != _digest(scope):
        raise InvalidCursorError(
            "The cursor belongs to a list with other filters, or to a result that has been replaced. "
            "Keep the filters while paging, or start without a cursor."
        )
    return position


def _digest(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:16]
