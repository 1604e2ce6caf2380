"""Which representation a client gets, by its Accept header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import NotAcceptableError

_QUALITY = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")


@dataclass(frozen=True)
class _Range:
    type: str
    subtype: str
    quality: float

    def specificity(self, media_type: str) -> int:
        """2 for the very type, 1 for `type/*`, 0 for `*/*`, -1 for another."""
        wanted, _, sub = media_type.partition("/")
        if self.type == "*":
            return 0
        if self.type != wanted or self.subtype not in ("*", sub):
            return -1
        return 1 if self.subtype == "*" else 2


def choose(accept: Sequence[str], offered: Sequence[str]) -> str:
    """The best of the offered media types; of equally good ones the first. `accept` are the lines of the header.

    Where they name nothing, anything is taken. Raises NotAcceptableError with what is offered.
    """
    ranges = [_parse(part) for part in ",".join(accept).split(",") if part.strip()]
    if not ranges:
        return offered[0]
    best = max(offered, key=lambda media_type: _quality(media_type, ranges))
    if _quality(best, ranges) <= 0:
        raise NotAcceptableError(f"Offered are {', '.join(offered)}.")
    return best


def _quality(media_type: str, ranges: Sequence[_Range]) -> float:
    closest = max(ranges, key=lambda item: item.specificity(media_type))
    return closest.quality if closest.specificity(media_type) >= 0 else 0.0


def _parse(part: str) -> _Range:
    media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q" and _QUALITY.fullmatch(value):
            quality = float(value)
    main, _, sub = media_type.partition("/")
    return _Range(main, sub, quality)
