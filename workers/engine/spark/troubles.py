"""What could not be read of a table before the run: in full for the log, in a sentence each for the plan report."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from service.datasets.reading import DataFile
from service.datasets.stores import StoreUnavailableError
from workers.engine.budget import go_on

_log = logging.getLogger(__name__)


class Troubles:
    """Collects them. Several threads read the files of a store, and all of them may add to one object.

    Callers run `check` before each file; it raises once the statistics are no longer needed.
    """

    def __init__(self, check: Callable[[], None] = go_on) -> None:
        self.check = check
        self._found: list[tuple[str, str, str]] = []

    def add(self, what: str, file: DataFile | None, error: Exception) -> None:
        """`what` could not be read, such as `The footer`, of `file` or of no file that is known."""
        _log.warning("statistics: %s of %s cannot be read: %s", what, file, error)
        self._found.append((what, "" if file is None else file.name, _reason(error)))

    def sentences(self) -> tuple[str, ...]:
        """One for each thing that could not be read, with the first file and how many more; no path beyond its name."""
        told = []
        for what in dict.fromkeys(what for what, _, _ in self._found):
            names = [(name, reason) for one, name, reason in self._found if one == what]
            name, reason = min(names)
            others = f" and of {len(names) - 1} more" if len(names) > 1 else ""
            told.append(f"{what}{f' of {name}' if name else ''}{others} cannot be read: {reason}.")
        return tuple(told)


def _reason(error: Exception) -> str:
    if isinstance(error, StoreUnavailableError):
        return str(error).rstrip(".")
    if isinstance(error, OSError):
        # Not its text, into which Arrow puts the whole path.
        return os.strerror(error.errno) if error.errno is not None else "what it holds is not what its format has"
    return "what it holds is not what its format has"
