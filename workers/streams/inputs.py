"""The input tables of a streaming job, the checks of their files before and after each mini-batch, and its plans.

`find_inputs` finds the files and columns of each table for the engine. `ConfinedReading` wraps each mini-batch. It
stops the stream if a mini-batch would read files outside of the data roots through links, or files that change while
they are read; see the class. `StreamPlans` plans the stream, and plans it again whenever a lookup table has changed.
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
from typing import Any

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.contract.read_options import TableFormat
from service.contract.tables import RateTable, StreamTable, TableSource
from service.data.file_changes import CODE, Confines, changed_files
from service.data.file_format import check_all_blocks
from service.data.file_io import is_same_version, local_path, version_of
from service.data.files import TableFiles, find_stream_files, find_table_files, pointer_of, real
from service.data.roots import Root, StoreUnavailableError
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.types.data_types import Schema
from service.store.streaming_state import Stream
from workers.engine.budget import no_check
from workers.engine.spark.sources import TableInput
from workers.engine.streaming.engine import PlannedStream, StreamEngine
from workers.engine.streaming.sources import (
    BatchBound,
    Input,
    RateInput,
    SourceLog,
    StreamInput,
    bound_of,
    entries_before,
)
from workers.engine.streaming.state import StateOptions, differences

_NONE: Mapping[str, TableInput] = MappingProxyType({})

_LOCAL = "file://"

_CHECK_SECONDS = 60.0
"""The least time between two checks of a table in a store, or of many files."""

_FEW_FILES = 1000
"""A table of at most so many local files is checked after each mini-batch, which takes some milliseconds."""

_NOT_KEPT = (
    "The mini-batch could mix old and new rows, so nothing of it is kept. Resume the job to join the table as it is "
    'now, or submit a job that follows the table ("refresh": true).'
)

_MAY_BE_KEPT = (
    "The table is checked at most once a minute. Mini-batches since the previous check may have mixed old and new "
    'rows, and are kept. Resume the job with {"from": "scratch"} to join all rows with the table as it is now, resume '
    'it without to join only further rows, or submit a job that follows the table ("refresh": true).'
)

_Version = tuple[int, ...] | None
"""The version of a local file, as returned by `version_of`; None for a file that cannot be examined."""


@dataclass(frozen=True)
class Posted:
    """An input stream: the directory of its Parquet files, and their columns."""

    directory: Path
    schema: Schema


@dataclass
class Inputs:
    """The input tables of a job, by table name."""

    tables: dict[str, Input] = field(default_factory=dict)

    @property
    def schemas(self) -> dict[str, Schema]:
        """The columns of every table."""
        return {name: table.schema for name, table in self.tables.items()}

    def with_tables(self, others: Mapping[str, TableInput]) -> Inputs:
        """Returns these inputs with other versions of some tables."""
        return Inputs({**self.tables, **others})


def find_inputs(
    spec: JobSpec, roots: Sequence[Root], posted: Mapping[str, Posted], followed: Mapping[str, TableInput] = _NONE
) -> Inputs:
    """Finds the tables of a job. `posted` are the input streams that it names; `followed` are the lookup tables whose
    version is already chosen. Raises SpecError and StoreUnavailableError."""
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
            check_all_blocks(name, table, files)
            inputs.tables[name] = TableInput(table, files, read_schema(name, table, files))
    return inputs


def _add_posted(inputs: Inputs, name: str, table: StreamTable, posted: Mapping[str, Posted]) -> None:
    known = posted.get(table.stream)
    if known is None:
        raise SpecError.of(
            "stream_unknown",
            f"The stream '{table.stream}' no longer exists. Create it with PUT /v1/streams/{table.stream}.",
            pointer=f"{pointer_of(name)}/stream",
        )
    source = TableSource(format=TableFormat.PARQUET, path=str(known.directory))
    # The configured path may contain links; files are opened without following links.
    files = tuple(sorted(real(known.directory).glob("[0-9]*.parquet")))
    uri = _uri(name, str(known.directory))
    inputs.tables[name] = StreamInput(source, uri, known.schema, files, table.operation, table.upsert)


def _add_directory(inputs: Inputs, name: str, table: TableSource, found: TableFiles) -> None:
    if found.files:
        schema = read_schema(name, table, found)
    elif table.declared_schema is not None:
        schema = parse_schema(table.declared_schema, f"{pointer_of(name)}/schema")
    else:
        raise SpecError.of(
            "schema_cannot_be_inferred",
            f"'{table.path}' no longer has a file from which to infer the columns. Add one, and resume the job.",
            pointer=f"{pointer_of(name)}/path",
        )
    inputs.tables[name] = StreamInput(
        table, _uri(name, str(found.directory_or_file)), schema, found.files, table.operation, table.upsert
    )


def _uri(table: str, place: str) -> str:
    """Returns the URI of a directory, escaped so that Spark does not read it as a glob pattern."""
    scheme, separator, path = place.rpartition("://")
    if ":" in path:
        raise SpecError.of(
            "unreadable_file",
            f"Spark cannot read '{place}' of table '{table}': a path must not contain a colon. Rename it.",
            pointer=f"{pointer_of(table)}/path",
        )
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", f"{scheme}{separator}{path}" if separator else f"file://{path}")


@dataclass(frozen=True)
class _Place:
    """The local path of a table, and the path that its job gives (`given`)."""

    table: str
    given: str
    path: str


def confined_reading(
    spec: JobSpec, roots: Sequence[Root], checkpoint: Path, inputs: Callable[[], Inputs]
) -> ConfinedReading:
    """Returns the checks for a job whose current plan reads `inputs`: it may read files below the data roots and the
    files of its input streams.
    """
    posted = (
        Path(table.source.path)
        for name, table in inputs().tables.items()
        if isinstance(table, StreamInput) and isinstance(spec.tables[name], StreamTable)
    )
    return ConfinedReading(checkpoint, Confines.of(roots, posted), inputs, spec.refreshed)


class ConfinedReading:
    """Checks the files of one attempt before and after each of its mini-batches.

    Links: the files in the directory of a stream at its start are checked like those of any table. Later files are
    listed by Spark, which follows links. Spark records the files of a mini-batch before it begins, and opens none
    before the mini-batch runs. They are checked in between: a link to a path outside of the data roots stops the stream
    before Spark reads a row of it. They are checked again before the sink gets any rows, since a file may be replaced
    by a link while Spark reads it. What Spark read then is in a state that it has not committed, and that it writes
    again. A link that exists only while Spark opens a file is not found; this is the same for a batch job.

    Changes: files that are written while Spark reads them are found by their versions (`service.data.file_changes`).
    Files of static tables must not change after the attempt found them, since earlier mini-batches read them. Tables of
    a few local files are checked after each mini-batch, before the sink gets any rows. Tables in stores, whose
    directories must be listed, and tables of many files are checked at most once a minute, and when the stream ends
    (`check_at_end`). Files of streams must not change after the mini-batch began. A file that was removed after Spark
    read it is no error, and files in stores are not checked.

    `inputs` returns the tables of the current plan. The tables `copied` are read from the service's own copies.
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
        """Whether no mini-batch has run since the last check of the tables that are checked once a minute."""
        self._logs: tuple[SourceLog, ...] = ()
        self._batch_id: int | None = None
        self._files: list[str] = []
        """The local files of that mini-batch, which may run again."""

    @contextmanager
    def __call__(self, batch_id: int) -> Iterator[None]:
        """Runs a mini-batch inside. Raises SpecError `path_outside_data_roots` and `files_changed`, also in place of an
        error from inside: Spark's errors may contain file contents. Raises OSError and ValueError if the checkpoint
        cannot be read, and StoreUnavailableError.
        """
        self._read_logs(batch_id)
        self._check_links()
        before = {path: _version_of(path) for path in self._files}
        is_done = False
        try:
            yield
            is_done = True
        finally:
            self._check_links()
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

    def _read_logs(self, batch_id: int) -> None:
        """Reads the files of the mini-batch from Spark's logs."""
        if batch_id != self._batch_id:
            self._batch_id, self._files = batch_id, []
        if not self._logs:
            # All logs exist once there is a mini-batch.
            before = entries_before(self._checkpoint, batch_id)
            self._logs = tuple(SourceLog(log, entry) for log, entry in before.items())
        for log in self._logs:
            # Stores have no links.
            self._files += [uri.removeprefix(_LOCAL) for uri in log.new() if uri.startswith(_LOCAL)]

    def _check_links(self) -> None:
        outside = self._confines.first_outside((*self._files, *self._static()))
        if outside is not None:
            raise self._refused(outside) from None

    def _check_changes(self, before: Mapping[str, _Version], *, is_done: bool) -> None:
        for files in self._static_tables():
            # A mini-batch that was stopped or has failed does not wait for a store, and its own error is reported.
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
            "kept. Write files elsewhere and rename them into the directory. Resume the job to read the file again.",
            pointer=None if place is None else f"{pointer_of(place.table)}/path",
        )

    def _refused(self, path: str) -> SpecError:
        place = self._place_of(path)
        if place is None:
            return SpecError.of("path_outside_data_roots", "A file of the stream is outside of the data roots.")
        # A file name may be any bytes. Only the link's own name is reported.
        link = self._confines.link_of(path, place.path).encode(errors="replace").decode()
        found = f"'{place.given}' contains the link '{link}'" if link else f"'{place.given}' is now a link"
        return SpecError.of(
            "path_outside_data_roots",
            f"{found} to a path outside of the data roots. Remove it, and resume the job.",
            pointer=f"{pointer_of(place.table)}/path",
        )

    def _places(self) -> Iterator[_Place]:
        for name, table in self._inputs().tables.items():
            if isinstance(table, StreamInput):
                path = table.unescaped
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


class StreamPlans:
    """The successive plans of one job. All of them use the same state."""

    def __init__(self, spec: JobSpec, engine: StreamEngine, inputs: Inputs, state: StateOptions) -> None:
        self._spec = spec
        self._engine = engine
        self._inputs = inputs
        self._state = state

    @property
    def inputs(self) -> Inputs:
        """The tables that the newest plan reads."""
        return self._inputs

    def plan(
        self,
        layout: Mapping[str, Any] | None,
        changed: Mapping[str, TableInput] | None = None,
        check: Callable[[], None] = no_check,
    ) -> PlannedStream:
        """Returns a plan for a state of this `layout` (None if there is no state yet), with other versions of the
        tables that have `changed`. The inputs of streams do not change. `check` is as in `StreamEngine.plan`. Raises
        SpecError, StreamPlanError, and what Spark raises when it analyses a plan.
        """
        if changed is not None:
            self._inputs = self._inputs.with_tables(changed)
        spec, inputs = self._spec, self._inputs
        return self._engine.plan(
            compile_job(spec, inputs.schemas, is_accepted=True),
            inputs.tables,
            self._state,
            _bounds(spec, inputs),
            output=spec.output_mode,
            settings=spec.settings,
            merges_parts=spec.sink.kind in {"managed", "postgres"} and not spec.has_change_log,
            is_log=spec.has_change_log,
            state_layout=layout,
            check=check,
        )


def state_of(spec: JobSpec, stream: Stream | None, slots: int) -> StateOptions:
    """Returns the state's options. By default it keeps its number of partitions, or gets one for each slot."""
    kept = (stream.layout or {}).get("partitions") if stream is not None else None
    return StateOptions(spec.settings.state.provider, spec.settings.state.partitions or kept or slots)


def check_layout(before: Mapping[str, Any] | None, planned: PlannedStream) -> None:
    """Raises SpecError `state_not_compatible` if the plan cannot use the existing state of layout `before`."""
    if before is None:
        return
    found = differences(dict(before), planned.layout)
    if found:
        raise SpecError.of(
            "state_not_compatible",
            f"{'; '.join(map(str, found))}. Restore the previous value and resume, or resume with "
            '{"from": "scratch"}: all input that still exists is read again, into a new generation of the result.',
        )


def _bounds(spec: JobSpec, inputs: Inputs) -> dict[str, BatchBound]:
    return {
        name: bound_of(spec.settings.mini_batch, table.source, table.files)
        for name, table in inputs.tables.items()
        if isinstance(table, StreamInput)
    }
