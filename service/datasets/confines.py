"""Whether files lie inside of given directories, links followed: asked again and again, of many files at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.datasets.local_files import is_inside, real
from service.datasets.roots import DirectoryRoot, Root, StoreRoot

_is_link = os.path.islink
"""Without a `Path` for each file, which would cost several times as much as the look itself."""


class Confines:
    """The directories of this machine below which files may be read."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._allowed = tuple(map(real, directories))

    @classmethod
    def of(cls, roots: Sequence[Root], further: Iterable[Path] = ()) -> Confines:
        """Those of the data roots that are on this machine, and `further` ones."""
        local = [
            root.path if isinstance(root, DirectoryRoot) else root for root in roots if not isinstance(root, StoreRoot)
        ]
        return cls((*local, *further))

    def hold(self, path: str) -> bool:
        """Whether the absolute `path` leads inside, whether anything is there or not."""
        there = real(Path(path))
        return any(is_inside(there, directory) for directory in self._allowed)

    def first_outside(self, paths: Iterable[str]) -> str | None:
        """The first of the absolute paths of files that leads elsewhere; None where all lead inside, or to nothing that
        would lie there. Costs a look at each file, and a few more at each directory.
        """
        directories: dict[str, bool] = {}
        for path in paths:
            directory = path.rpartition("/")[0] or "/"
            if directory not in directories:
                directories[directory] = self.hold(directory)
            if not directories[directory] or (_is_link(path) and not self.hold(path)):
                return path
        return None

    def link_of(self, path: str, base: str) -> str:
        """How far below `base` a path that leads elsewhere leads inside, and the next name: that of the link. Empty
        where that is `base` itself.
        """
        below = path.removeprefix(base).strip("/")
        parts = below.split("/")
        ways = ("/".join(parts[:count]) for count in range(len(parts)))
        return next((way for way in ways if not self.hold(f"{base}/{way}")), below)
