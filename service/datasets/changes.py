"""Whether the files of a table are still those that were found when its job was planned.

A job reads the files that its planning found, and no others. Statistics, Spark's own listing and Spark's tasks read
them later, some of them several times, so a file that is written meanwhile could be read in two states. Planning keeps
the size and the times of each file (`version_of`). After the last reading they are looked at again: what differs makes
the result doubtful, and it is not published.

Not found out: a file that is written with the same size within the resolution of the times of its file system (a few
milliseconds on local disks, a second in most object stores), a time served from the cache of a network file system,
and changes on a file system without times. Files that are added to a directory are not read: no change.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.datasets.files import TableFiles, pointer_of, unreadable
from service.datasets.reading import DataFile, UriFile, version_of
from service.datasets.stores import Child, Store
from service.spec.errors import SpecError
from service.spec.locations import Location

CODE = "files_changed"

SUBMIT_AGAIN = "Submit the job again; 'limits.failure_retries' does so by itself."
"""What the caller of a batch job can do."""

Version = tuple[int, ...]


def changed_files(found: TableFiles, advice: str = SUBMIT_AGAIN) -> SpecError | None:
    """What is wrong where a file of the table was written, replaced or removed since it was found; else None. Names
    the first such file, and ends with `advice`.

    Raises SpecError `unreadable_file`, and StoreUnavailableError where the store does not answer, or takes longer for
    all listings together than it may for finding the files.
    """
    for file, before, now in _versions(found):
        if now != before:
            happened = "was removed" if now is None else "has changed"
            detail = (
                f"The file '{_name(found, file)}' of the table '{found.table}' {happened} since it was planned to be "
                f"read. The result could mix old and new rows, so nothing of it is kept. {advice}"
            )
            return SpecError.of(CODE, detail, pointer=f"{pointer_of(found.table)}/path")
    return None


def _versions(found: TableFiles) -> Iterator[tuple[DataFile, Version, Version | None]]:
    """Each file with its version when it was found and its version now, which is None for a file that is gone."""
    listings = _Listings(found)
    for place, file in enumerate(found.files):
        before = found.versions[place] if found.versions else None
        if isinstance(file, UriFile) and file.store is not None:
            child = listings.child(file, file.store)
            # A store that does not give times gives sizes.
            of_size = before is None
            now = None if child is None else (child.size,) if of_size else (child.size, child.modified or 0)
            yield file, before or (file.size,), now
        elif before is not None:
            yield file, before, _local_version(found, file)


def _local_version(found: TableFiles, file: DataFile) -> Version | None:
    try:
        return version_of(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(_name(found, file), error, f"{pointer_of(found.table)}/path") from None


class _Listings:
    """The store's entries of one table's files now. Each directory is listed once."""

    def __init__(self, found: TableFiles) -> None:
        self._place = str(found.directory_or_file)
        self._known: dict[str, dict[str, Child]] = {}
        self._deadline: float | None = None

    def child(self, file: UriFile, store: Store) -> Child | None:
        """The entry of a file, asked for as it was found: by its own name, or by a listing of its directory. The two
        may tell times in other resolutions.
        """
        if self._place == file.uri:
            return store.look(file.path)
        if self._deadline is None:
            self._deadline = store.clock() + store.search_seconds
        directory, _, name = file.path.rpartition("/")
        if directory not in self._known:
            listed = store.children(directory, self._deadline - store.clock()) or ()
            self._known[directory] = {child.name: child for child in listed if child.is_file}
        return self._known[directory].get(name)


def _name(found: TableFiles, file: DataFile) -> str:
    """The path of a file below the table's own, which is all that callers know."""
    place = found.directory_or_file
    below = place.path if isinstance(place, Location) else str(place)
    path = file.path if isinstance(file, UriFile) else str(file)
    # Any bytes may be a name.
    return (path.removeprefix(below).strip("/") or file.name).encode(errors="replace").decode()
