"""Patterns of paths with wildcards, such as `orders/2026-*/*.csv`, and paths that resemble one that does not exist.

`*`, `?` and `[…]` match within a name, `**` any directories.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath

from service.contract.problems import did_you_mean, nearest_names
from service.contract.tables import has_wildcards

_ANY_DIRECTORIES = "**"
_MAX_NEIGHBORS = 1000
"""The most entries of a directory that are compared with a name."""


@dataclass(frozen=True)
class PathPattern:
    """A directory without wildcards, and the patterns of the names below it."""

    directory: str
    names: tuple[str, ...]

    def matches(self, parts: tuple[str, ...]) -> bool:
        """Whether a file is meant, by the names of its path below the directory: if all of them match, or if the first
        ones do and the pattern ends there, which means a directory with everything in it.
        """
        return len(self.names) in self._places(parts) or self._ended_before(parts)

    def may_contain(self, parts: tuple[str, ...]) -> bool:
        """Whether files inside of a directory may match."""
        return bool(self._places(parts)) or self._ended_before(parts)

    def _ended_before(self, parts: tuple[str, ...]) -> bool:
        return any(len(self.names) in self._places(parts[:count]) for count in range(1, len(parts)))

    def _places(self, parts: tuple[str, ...]) -> set[int]:
        """Returns how many of the patterns may have been used after `parts`."""
        places = self._after_any_directories({0})
        for part in parts:
            following = set()
            for place in places:
                if place == len(self.names):
                    continue
                if self.names[place] == _ANY_DIRECTORIES:
                    following.add(place)
                elif self._compiled[place].fullmatch(part):
                    following.add(place + 1)
            places = self._after_any_directories(following)
        return places

    def _after_any_directories(self, places: set[int]) -> set[int]:
        found = set(places)
        for place in sorted(places):
            following = place
            while following < len(self.names) and self.names[following] == _ANY_DIRECTORIES:
                following += 1
                found.add(following)
        return found

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(fnmatch.translate(name)) for name in self.names)


def pattern_of(path: str) -> PathPattern | None:
    """Returns the pattern that a path may be; None if it has no wildcards.

    >>> pattern_of("orders/2026-*/*.csv")
    PathPattern(directory='orders', names=('2026-*', '*.csv'))
    """
    if not has_wildcards(path):
        return None
    scheme, separator, rest = path.rpartition("://")
    parts = rest.split("/")
    first = next((place for place, part in enumerate(parts) if has_wildcards(part)), len(parts))
    names = tuple(part for part in parts[first:] if part)
    if not names or ".." in names:
        return None
    directory = "/".join(parts[:first])
    if rest.startswith("/") and not directory.startswith("/"):
        directory = f"/{directory}"
    return PathPattern(f"{scheme}{separator}{directory}", names)


def nearest_paths(given: str, roots: Iterable[Path]) -> tuple[str, ...]:
    """Returns the paths in the directory of the relative path `given` that are most similar to it, below the first of
    the local `roots`, without links, that has such a directory.
    """
    directory, _, name = given.rstrip("/").rpartition("/")
    for root in roots:
        parent = Path(os.path.realpath(root / directory))
        if root != parent and root not in parent.parents:
            continue
        try:
            with os.scandir(parent) as entries:
                names = [
                    entry.name for entry in islice(entries, _MAX_NEIGHBORS) if not entry.name.startswith((".", "_"))
                ]
        except OSError:
            continue
        prefix = f"{directory}/" if directory else ""
        return tuple(prefix + found for found in nearest_names(name, sorted(names)))
    return ()


def without_root_name(given: str, roots: Iterable[Path]) -> tuple[str, str] | None:
    """Returns the name of a data root and the path inside of it, if the relative path `given` begins with that name and
    the rest exists in the root: `shop` and `orders.csv` for `shop/orders.csv`, `shop` and `.` for `shop`. The local
    `roots` are without links.
    """
    parts = PurePosixPath(given).parts
    for root in roots:
        for length in range(1, len(parts) + 1):
            if root.parts[-length:] != parts[:length]:
                continue
            found = Path(os.path.realpath(root.joinpath(*parts[length:])))
            if (root == found or root in found.parents) and found.exists():
                return root.name, "/".join(parts[length:]) or "."
    return None


def advice_on_path(given: str, roots: Sequence[Path]) -> tuple[str, tuple[str, ...]]:
    """Returns a sentence about the path `given`, which does not exist in the local `roots`, and the paths it names."""
    repeated = without_root_name(given, roots)
    if repeated is not None:
        root, path = repeated
        return f" A path begins inside of a data root, here inside of '{root}': write '{path}'.", (path,)
    near = nearest_paths(given, roots)
    return did_you_mean(near) or " A relative path begins at a data root of the service.", near
