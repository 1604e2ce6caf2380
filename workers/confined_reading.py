"""Keeps mini-batches from reading, through links, what lies outside of the data roots, and files in two states.

What is in the directory of a stream when it starts is looked at like any table's. What comes later Spark lists itself,
and follows links. It notes the files of a mini-batch before it begins; none is opened before the mini-batch is run.
They are looked at in between: a link that leads out fails the stream before a row of it is read. And they are looked at
again before the sink is given anything, since a file may be swapped for a link while it is read: what was read then is
in a state that Spark has not noted, and which it writes again. A link that is there no longer than Spark takes to open
a file is not found out so, here as for a batch job.

Files that are written while they are read are found out by their sizes and times (`service.datasets.changes`). Files
of static tables must be as they were when the attempt found them, since earlier mini-batches read them so. Files of
streams must be as they were when the mini-batch began; one that was removed after it was read is no harm, and those in
stores are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from service.datasets.changes import CODE, changed_files
from service.datasets.confines import Confines
from service.datasets.files import TableFiles, pointer_of
from service.datasets.reading import is_same_version, local_path, version_of
from service.datasets.roots import Root
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.streaming import StreamTable
from workers.engine.spark.sources import TableInput
from workers.engine.streaming.sources import StreamInput
from workers.engine.streaming.taken_files import TakenFiles, taken_before
from workers.stream_inputs import Inputs

_LOCAL = "file://"

_STATIC_ADVICE = (
    'Resume the job to join the table as it is now, or submit a job that follows the table ("follow": true).'
)

_Version = tuple[int, ...] | None
"""Of a file on this machine, as returned by `version_of`; None for one that cannot be looked at."""


@dataclass(frozen=True)
class _Place:
    """Where a table is on this machine, and what its job calls that."""

    table: str
    given: str
    path: str


def confined_reading(
    spec: JobSpec, roots: Sequence[Root], checkpoint: Path, inputs: Callable[[], Inputs]
) -> ConfinedReading:
    """For a job whose plan at hand reads `inputs`: files below the data roots, and rows that were posted to its
    streams.
    """
    posted = (
        Path(table.source.path)
        for name, table in inputs().tables.items()
        if isinstance(table, StreamInput) and isinstance(spec.tables[name], StreamTable)
    )
    return ConfinedReading(checkpoint, Confines.of(roots, posted), inputs, spec.followed)


class ConfinedReading:
    """For one attempt; its stream calls it, one mini-batch after the other. `inputs` gives those of the plan at hand;
    the tables `copied` are read from copies of the service's own.
    """

    def __init__(
        self, checkpoint: Path, confines: Confines, inputs: Callable[[], Inputs], copied: Collection[str] = ()
    ) -> None:
        self._checkpoint = checkpoint
        self._confines = confines
        self._inputs = inputs
        self._copied = copied
        self._logs: tuple[TakenFiles, ...] = ()
        self._batch_id: int | None = None
        self._taken: list[str] = []
        """Files of that mini-batch, which may come again."""

    @contextmanager
    def __call__(self, batch_id: int) -> Iterator[None]:
        """Runs a mini-batch inside. Raises SpecError `path_outside_data_roots` and `files_changed`, also in place of an
        error from inside: Spark's errors may contain file contents. Raises OSError and ValueError where the checkpoint
        cannot be read, and StoreUnavailableError.
        """
        self._take(batch_id)
        self._check()
        before = {path: _version_of(path) for path in self._taken}
        is_done = False
        try:
            yield
            is_done = True
        finally:
            self._check()
            self._check_changes(before, is_done=is_done)

    def _take(self, batch_id: int) -> None:
        if batch_id != self._batch_id:
            self._batch_id, self._taken = batch_id, []
        if not self._logs:
            # All are there once there is a mini-batch.
            before = taken_before(self._checkpoint, batch_id)
            self._logs = tuple(TakenFiles(log, entry) for log, entry in before.items())
        for log in self._logs:
            # Stores have no links.
            self._taken += [uri.removeprefix(_LOCAL) for uri in log.new() if uri.startswith(_LOCAL)]

    def _check(self) -> None:
        outside = self._confines.first_outside((*self._taken, *self._static()))
        if outside is not None:
            raise self._refused(outside) from None

    def _check_changes(self, before: Mapping[str, _Version], *, is_done: bool) -> None:
        for files in self._static_tables():
            # A stream that was stopped or has failed does not wait for a store.
            if is_done or None not in map(local_path, files.files):
                problem = changed_files(files, _STATIC_ADVICE)
                if problem is not None:
                    raise problem from None
        for path, version in before.items():
            now = _version_of(path)
            if now is not None and not is_same_version(version, now):
                raise self._rewritten(path) from None

    def _static_tables(self) -> Iterator[TableFiles]:
        for name, table in self._inputs().tables.items():
            if isinstance(table, TableInput) and name not in self._copied:
                yield table.files

    def _static(self) -> Iterator[str]:
        for files in self._static_tables():
            yield from (str(path) for path in map(local_path, files.files) if path is not None)

    def _place_of(self, path: str) -> _Place | None:
        return max(
            (place for place in self._places() if f"{path}/".startswith(f"{place.path}/")),
            key=lambda place: len(place.path),
            default=None,
        )

    def _rewritten(self, path: str) -> SpecError:
        place = self._place_of(path)
        name = path.removeprefix("" if place is None else place.path).strip("/").encode(errors="replace").decode()
        return SpecError.of(
            CODE,
            f"The file '{name}' of a stream was written while a mini-batch read it, so nothing of the mini-batch is "
            "kept. Write files aside and rename them into the directory. Resume the job to read the file again.",
            pointer=None if place is None else f"{pointer_of(place.table)}/path",
        )

    def _refused(self, path: str) -> SpecError:
        place = self._place_of(path)
        if place is None:
            return SpecError.of("path_outside_data_roots", "A file of the stream lies outside of the data roots.")
        # Any bytes may be a name; and no more than the link's own is told.
        link = self._confines.link_of(path, place.path).encode(errors="replace").decode()
        found = f"'{place.given}' holds the link '{link}'" if link else f"'{place.given}' has become a link"
        return SpecError.of(
            "path_outside_data_roots",
            f"{found} that leads out of the data roots. Remove it, and resume.",
            pointer=f"{pointer_of(place.table)}/path",
        )

    def _places(self) -> Iterator[_Place]:
        for name, table in self._inputs().tables.items():
            if isinstance(table, StreamInput):
                path = re.sub(r"\\(.)", r"\1", table.directory)
            elif isinstance(table, TableInput):
                path = str(table.files.directory_or_file)
            else:
                continue
            yield _Place(name, table.source.path, path.removeprefix(_LOCAL))


def _version_of(path: str) -> _Version:
    with suppress(OSError):
        return version_of(Path(path))
    return None
