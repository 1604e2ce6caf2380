"""The files below a directory: without hidden ones, without partitions, and not without end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.datasets.reading import DataFile
from service.spec.errors import SpecError

MAX_FILES = 100_000
MAX_DEPTH = 16

D = TypeVar("D")
E = TypeVar("E")


@dataclass(frozen=True)
class Found(Generic[D]):
    """What an entry of a directory is: one of the two, or neither."""

    directory: D | None = None
    file: DataFile | None = None


class Walk(ABC, Generic[D, E]):
    """Lists a directory's data files; `given` is the caller's own path, the only one that messages tell.

    `D` is what a directory is known by, `E` what its listing gives of an entry.
    """

    def __init__(self, given: str, pointer: str) -> None:
        self._given = given
        self._pointer = pointer
        self._entries = 0

    @abstractmethod
    def entries(self, directory: D) -> Iterator[tuple[str, E]]:
        """Names and entries of a directory."""

    @abstractmethod
    def look(self, name: str, entry: E) -> Found[D]:
        """What an entry is."""

    def files(self, directory: D, depth: int = 0) -> Iterator[DataFile]:
        """All files, in no order. Raises SpecError `unsupported_construct` and what listing raises."""
        if depth > MAX_DEPTH:
            raise self.refused(f"'{self._given}' is nested more than {MAX_DEPTH} directories deep.")
        for name, entry in self.entries(directory):
            if name.startswith(("_", ".")):
                continue
            # Over all directories: links may lead back to their parents.
            self._entries += 1
            if self._entries > MAX_FILES:
                raise self.refused(f"'{self._given}' has more than {MAX_FILES} files.")
            yield from self._below(name, self.look(name, entry), depth)

    def _below(self, name: str, found: Found[D], depth: int) -> Iterator[DataFile]:
        if found.directory is not None:
            if "=" in name:
                raise self.refused(
                    f"'{self._given}' is partitioned ('{name}'): directories named key=value are not supported."
                )
            yield from self.files(found.directory, depth + 1)
        elif found.file is not None:
            yield found.file
        else:
            raise self.refused(f"'{self._given}' holds '{name}', which is no regular file.")

    def refused(self, detail: str) -> SpecError:
        """The refusal of what cannot be read as a table."""
        return SpecError.of("unsupported_construct", detail, pointer=self._pointer)
