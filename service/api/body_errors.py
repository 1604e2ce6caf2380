"""What may be wrong with a body of JSON before it is looked at: see `service.api.guard`."""

from __future__ import annotations

from service.errors import (
    BodyTooLargeError,
    DuplicateKeyError,
    MalformedJsonError,
    NestingTooDeepError,
    UnsupportedMediaTypeError,
)

BODY_ERRORS = (
    MalformedJsonError,
    BodyTooLargeError,
    UnsupportedMediaTypeError,
    NestingTooDeepError,
    DuplicateKeyError,
)
