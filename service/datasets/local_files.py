"""Files of this machine: links are followed first, and must not lead out of the roots."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.datasets.walking import Found, Walk
from service.spec.errors import SpecError


def real(path: Path) -> Path:
    """The path without links."""
    return Path(os.path.realpath(path))


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path without links is `root`, or below it."""
    return root == path or root in path.parents


class LocalWalk(Walk[Path, os.DirEntry[str]]):
    """Lists a directory of this machine. `allowed` are all local roots, without links."""

    def __init__(self, given: str, allowed: Sequence[Path], pointer: str) -> None:
        super().__init__(given, pointer)
        self._allowed = allowed

    def entries(self, directory: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Names and entries of a directory."""
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name, entry

    def look(self, name: str, entry: os.DirEntry[str]) -> Found[Path]:
        """What an entry is, or what a link leads to. Raises SpecError `path_outside_data_roots`."""
        path = Path(entry.path)
        if entry.is_symlink():
            path = real(path)
            if not any(is_inside(path, root) for root in self._allowed):
                detail = f"'{self._given}' holds the link '{name}' that leads out of the data roots."
                raise SpecError.of("path_outside_data_roots", detail, pointer=self._pointer)
        if path.is_dir():
            return Found(directory=path)
        return Found(file=path) if path.is_file() else Found()
