"""What clients are told of errors of Spark's that name files of the service itself, which nobody else can see."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote


class StreamTexts:
    """For one attempt at a stream. `directory` is that of all streams; `of_copies` puts the names of tables' own files
    in the place of those of their copies, once the tables are known.
    """

    def __init__(self, directory: Path) -> None:
        self._own = path_pattern(directory)
        self.of_copies: Callable[[str], str] = lambda text: text

    def __call__(self, text: str) -> str | None:
        """The text as clients may see it; None where it is about files that are for the service to mend: its state, its
        checkpoint, rows that were posted.
        """
        told = self.of_copies(text)
        return None if self._own.search(told) else told


def path_pattern(path: Path) -> re.Pattern[str]:
    """Finds the path in a text of Spark's, as it is or escaped as in a URI, some of it or all; with its scheme."""
    return re.compile(f"(?:file:(?://)?)?{''.join(map(_spelled, str(path)))}(?![^/\\s'\",;:)\\]])")


def _spelled(character: str) -> str:
    escaped = quote(character, safe="/", errors="surrogateescape")
    return re.escape(character) if escaped == character else f"(?:{re.escape(character)}|(?i:{re.escape(escaped)}))"
