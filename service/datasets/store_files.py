"""Files of stores: found by listings alone, whose names and sizes are believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.datasets.reading import UriFile
from service.datasets.roots import StoreRoot
from service.datasets.stores import Child, ListingOverdueError, Store
from service.datasets.walking import Found, Walk
from service.spec.errors import SpecError
from service.spec.locations import Location


def find_in_store(root: StoreRoot, location: Location, given: str, pointer: str) -> list[UriFile] | None:
    """The files at `location`, which lies inside `root`, by name; None where there is nothing.

    Raises SpecError `unsupported_construct`, also where it takes longer than the store may, and what a Store raises.
    """
    try:
        return _find(root.store, location, given, pointer)
    except ListingOverdueError:
        detail = (
            f"Finding the files of '{given}' takes longer than {root.store.search_seconds:g} seconds: it has too many, "
            "or its store is slow. Name a directory with fewer files; EVENKEEL_DATA_STORE_SEARCH_SECONDS is the limit."
        )
        raise SpecError.of("unsupported_construct", detail, pointer=pointer) from None


def _find(store: Store, location: Location, given: str, pointer: str) -> list[UriFile] | None:
    deadline = store.clock() + store.search_seconds
    # One listing tells of a directory all that is needed. Of an object store it also is the only request whose refusal
    # says why: the answer to a look at a name has no body.
    if not store.is_flat:
        there = store.look(location.path)
        if there is None or there.is_file:
            return None if there is None else [_file(store, location, there)]
    children = store.children(location.path, deadline - store.clock())
    if children is not None:
        walk = StoreWalk(store, given, pointer, (location, children), deadline)
        files = [file for file in walk.files(location) if isinstance(file, UriFile)]
        return sorted(files, key=lambda file: file.path)
    alone = store.look(location.path) if location.parts and store.is_flat else None
    if alone is not None and alone.is_file:
        return [_file(store, location, alone)]
    return None


def _file(store: Store, location: Location, child: Child) -> UriFile:
    return UriFile(str(location), location.path, child.size, store, child.modified)


class StoreWalk(Walk[Location, tuple[Location, Child]]):
    """Lists a directory of a store. `known` is a directory that was listed already, `deadline` by the store's
    clock when the last one must have been."""

    def __init__(
        self, store: Store, given: str, pointer: str, known: tuple[Location, Iterable[Child]], deadline: float
    ) -> None:
        super().__init__(given, pointer)
        self._store = store
        self._known = known
        self._deadline = deadline

    def entries(self, directory: Location) -> Iterator[tuple[str, tuple[Location, Child]]]:
        """Names and entries of a directory."""
        known, listed = self._known
        if directory != known:
            listed = self._store.children(directory.path, self._deadline - self._store.clock()) or ()
        for child in listed:
            yield child.name, (directory, child)

    def look(self, name: str, entry: tuple[Location, Child]) -> Found[Location]:
        """What an entry is. Objects with an empty part in their names (`a//b`) are in no listing of Arrow's."""
        directory, child = entry
        location = Location(directory.scheme, directory.authority, (*directory.parts, name))
        if child.is_directory:
            return Found(directory=location)
        return Found(file=_file(self._store, location, child)) if child.is_file else Found()
