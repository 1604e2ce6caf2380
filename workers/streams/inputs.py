"""The tables of a streaming job as the engine takes them: directories that grow, and tables as they are.

Keeps mini-batches from reading, through links, what lies outside of the data roots, and files in two states.

What is in the directory of a stream when it starts is looked at like any table's. What comes later Spark lists itself,
and follows links. It notes the files of a mini-batch before it begins; none is opened before the mini-batch is run.
They are looked at in between: a link that leads out fails the stream before a row of it is read. And they are looked at
again before the sink is given anything, since a file may be swapped for a link while it is read: what was read then is
in a state that Spark has not noted, and which it writes again. A link that is there no longer than Spark takes to open
a file is not found out so, here as for a batch job.

Files that are written while they are read are found by their versions (`service.data.file_changes`). Files of static
tables must be as they were when the attempt found them, since earlier mini-batches read them so. Tables of a few local
files are checked after each mini-batch, before the sink is given anything. Tables in stores, whose directories must be
listed, and tables of many files are checked at most once a minute, and when the stream ends (`check_at_end`). Files of
streams must be as they were when the mini-batch began; one that was removed after it was read is no harm, and those in
stores are not looked at.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from service.contract.job import JobSpec, RateTable, StreamTable, TableFormat, TableSource
from service.contract.problems import SpecError
from service.data.file_changes import CODE, Confines, changed_files
from service.data.file_io import is_same_version, local_path, version_of
from service.data.files import TableFiles, find_stream_files, find_table_files, pointer_of, real
from service.data.roots import Root, StoreUnavailableError
from service.data.schemas import read_schema
from service.sql.ddl import parse_schema
from service.sql.types.data_types import Schema
from workers.engine.spark.sources import TableInput
from workers.engine.streaming.source_log import TakenFiles, taken_before
from workers.engine.streaming.sources import Input, RateInput, StreamInput

_NONE: Mapping[str, TableInput] = MappingProxyType({})


@dataclass(frozen=True)
class Posted:
    """A stream of posted rows: the directory of its Parquet files, and their columns."""

    directory: Path
    schema: Schema


@dataclass
class Inputs:
    """By table name."""

    tables: dict[str, Input] = field(default_factory=dict)

    @property
    def schemas(self) -> dict[str, Schema]:
        """The columns of every table."""
        return {name: table.schema for name, table in self.tables.items()}

    def with_tables(self, others: Mapping[str, TableInput]) -> Inputs:
        """The same with other versions of some tables."""
        return Inputs({**self.tables, **others})


def find_inputs(
    spec: JobSpec, roots: Sequence[Root], posted: Mapping[str, Posted], followed: Mapping[str, TableInput] = _NONE
) -> Inputs:
    """What the tables of a job are now; `posted` are the streams of its tenant that it names, `followed` the tables of
    which a version is chosen. Raises SpecError and StoreUnavailableError."""
    inputs = Inputs()
    for name, table in spec.tables.items():
        if name in followed:
            inputs.tables[name] = followed[name]
        elif isinstance(table, RateTable):
            inputs.tables[name] = RateInput(table.rows_per_second)
        elif isinstance(table, StreamTable):
            _add_posted(inputs, name, table, posted)
        elif name in spec.streams:
            _add_directory(inputs, name, table, find_stream_files(name, table, roots))
        else:
            files = find_table_files(name, table, roots)
            inputs.tables[name] = TableInput(table, files, read_schema(name, table, files))
    return inputs


def _add_posted(inputs: Inputs, name: str, table: StreamTable, posted: Mapping[str, Posted]) -> None:
    known = posted.get(table.stream)
    if known is None:
        raise SpecError.of(
            "stream_unknown",
            f"The stream '{table.stream}' is gone. PUT /v1/streams/{table.stream} makes it anew.",
            pointer=f"{pointer_of(name)}/stream",
        )
    source = TableSource(format=TableFormat.PARQUET, path=str(known.directory))
    # The directory may be told by way of links; its files are opened without following any.
    files = tuple(sorted(real(known.directory).glob("[0-9]*.parquet")))
    inputs.tables[name] = StreamInput(source, _uri(name, str(known.directory)), known.schema, files)


def _add_directory(inputs: Inputs, name: str, table: TableSource, found: TableFiles) -> None:
    if found.files:
        schema = read_schema(name, table, found)
    elif table.declared_schema is not None:
        schema = parse_schema(table.declared_schema, f"{pointer_of(name)}/schema")
    else:
        raise SpecError.of(
            "schema_cannot_be_inferred",
            f"'{table.path}' holds no file any more that would tell the columns. Put one there, and resume the job.",
            pointer=f"{pointer_of(name)}/path",
        )
    inputs.tables[name] = StreamInput(table, _uri(name, str(found.directory_or_file)), schema, found.files)


def _uri(table: str, place: str) -> str:
    """A directory as Spark takes it literally."""
    scheme, separator, path = place.rpartition("://")
    if ":" in path:
        raise SpecError.of(
            "unreadable_file",
            f"Spark cannot read '{place}' of table '{table}': rename it so that its path has no colon.",
            pointer=f"{pointer_of(table)}/path",
        )
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", f"{scheme}{separator}{path}" if separator else f"file://{path}")


_LOCAL = "file://"

_CHECK_SECONDS = 60.0
"""The least time between two checks of a table in a store, or of many files."""

_FEW_FILES = 1000
"""A table of so many local files is checked after each mini-batch: that takes some milliseconds."""

_NOT_KEPT = (
    "The mini-batch could mix old and new rows, so nothing of it is kept. Resume the job to join the table as it is "
    'now, or submit a job that follows the table ("follow": true).'
)

_MAY_BE_KEPT = (
    "The table is checked at most once a minute. Mini-batches since the previous check may have mixed old and new "
    'rows, and are kept. Resume the job with {"from": "scratch"} to join all rows with the table as it is now, resume '
    'it without to join further rows alone, or submit a job that follows the table ("follow": true).'
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
        self,
        checkpoint: Path,
        confines: Confines,
        inputs: Callable[[], Inputs],
        copied: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoint = checkpoint
        self._confines = confines
        self._inputs = inputs
        self._copied = copied
        self._clock = clock
        self._checked_at = -math.inf
        self._is_checked = True
        """Whether no mini-batch was run since the last check of the tables that are checked once a minute."""
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

    def check_at_end(self) -> None:
        """Checks the tables that are checked once a minute, unless they were checked after the last mini-batch. Called
        after the stream has ended. Raises SpecError `files_changed`, and StoreUnavailableError.
        """
        if self._is_checked:
            return
        for files in self._static_tables():
            if not _is_cheap(files):
                _require_unchanged(files, _MAY_BE_KEPT)
        self._checked_at, self._is_checked = self._clock(), True

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
            # A mini-batch that was stopped or has failed does not wait for a store, and its own error counts.
            is_cheap = _is_cheap(files)
            if is_cheap or (not is_done and _is_local(files)):
                with nullcontext() if is_done else suppress(StoreUnavailableError):
                    _require_unchanged(files, _NOT_KEPT if is_cheap else _MAY_BE_KEPT)
        for path, version in before.items():
            now = _version_of(path)
            if now is not None and not is_same_version(version, now):
                raise self._rewritten(path) from None
        if is_done:
            self._is_checked = False
            if self._clock() - self._checked_at >= _CHECK_SECONDS:
                self.check_at_end()

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


def _is_local(files: TableFiles) -> bool:
    return None not in map(local_path, files.files)


def _is_cheap(files: TableFiles) -> bool:
    return len(files.files) <= _FEW_FILES and _is_local(files)


def _require_unchanged(files: TableFiles, consequence: str) -> None:
    problem = changed_files(files, consequence)
    if problem is not None:
        raise problem from None


def _version_of(path: str) -> _Version:
    with suppress(OSError):
        return version_of(Path(path))
    return None
