"""Checks the lookup tables of a stream for changes, and copies a changed table as a new version.

`FollowedTable` checks one table. A table that is being written is not copied: two checks in a row must find the same
change, and the files must still be the same after they were copied. A table that has no file or other columns is never
copied; the stream continues with its version, and the job reports why. (A table without rows is a file without rows.)

`TableChecks` runs the checks of an attempt in threads, since a table may be large or its store slow. Only copies are
limited in number, so a store that does not respond does not delay the checks of other tables.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

import structlog

from service.config.processes import DaemonPool
from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.file_format import check_all_blocks
from service.data.file_io import UriFile
from service.data.files import TableFiles, find_table_files, pointer_of
from service.data.roots import Root, StoreUnavailableError
from service.data.schemas import read_schema
from service.sql.types.data_types import Schema
from workers.engine.spark.sources import TableInput
from workers.jobs.attempt import AttemptStopped
from workers.jobs.outcome import path_pattern
from workers.streams.lookup_table_versions import Draft, TableVersions, Version, fingerprint_of

MAX_COPIES = 4
"""How many checks of a worker may copy at the same time: they share its disk and its network."""

_SLOT_SECONDS = 0.2
_END_SECONDS = 2.0

SETTLE_SECONDS = 2.0
"""A change that is the same after this time is complete."""

_FRESH_SECONDS = 60.0
"""Stores report modification times in seconds: a file that was written twice within one second, with the same size,
appears unchanged. A file with an older time was not just written, even if the clocks of the store and of this machine
differ.
"""

_MAX_POLLS = 5
"""How many times a table that keeps changing is checked before the stream starts without its newest version."""

_COPY_RETRY_SECONDS = 300.0
"""How long to wait before copying again after the disk refused a copy."""

_COPY = r"/v(?P<version>\d{1,9})/(?P<copy>\d+(?:\.[A-Za-z0-9_-]{1,16}){0,2})"
"""The path of a copied file, relative to the directory of the table's versions."""

_log = structlog.get_logger(__name__)


class TableChecks:
    """Runs the checks of one attempt, one after the other, in their own thread.

    `check` raises AttemptStopped once the attempt must stop. All attempts of a worker share `slots`, the semaphore of
    copies. Only one thread at a time may call the methods, except `check` and `copy_slot`, which the checks call.
    """

    def __init__(self, check: Callable[[], object], slots: threading.Semaphore) -> None:
        self._check = check
        self._slots = slots
        self._ended = threading.Event()
        self._pool = DaemonPool(1, "follow")
        self._result: Future[bool] | None = None

    def check(self) -> None:
        """Called while files are copied. Raises AttemptStopped once the attempt must stop or has ended."""
        if self._ended.is_set():
            raise AttemptStopped("the attempt has ended")
        self._check()

    @contextmanager
    def copy_slot(self) -> Iterator[None]:
        """Waits until a further copy may begin, and counts it while inside. Raises what `check` raises."""
        while not self._slots.acquire(timeout=_SLOT_SECONDS):
            self.check()
        try:
            yield
        finally:
            self._slots.release()

    @property
    def is_running(self) -> bool:
        """Whether a check is running."""
        return self._result is not None and not self._result.done()

    def begin(self, poll: Callable[[], bool]) -> None:
        """Starts a check. Returns at once. The result of the previous check must have been fetched with `result`."""
        self._result = self._pool.submit(partial(copy_context().run, poll))

    def result(self) -> bool | None:
        """Returns or raises what the last check returned or raised, once; None if no check has ended since then. A
        check that was stopped counts as one without a new version.
        """
        result = self._result
        if result is None or not result.done():
            return None
        self._result = None
        try:
            return result.result()
        except AttemptStopped:
            return False

    def end(self) -> None:
        """Called at the end of the attempt. A running check stops within a few megabytes; waits two seconds for it."""
        self._ended.set()
        self._pool.close()
        if self._result is not None:
            wait([self._result], _END_SECONDS)


@dataclass(frozen=True)
class NotUsed:
    """Why the newest state of a table is not used."""

    code: str
    detail: str


CopySlot = Callable[[], AbstractContextManager[object]]
"""Returns the context in which a copy is made."""


class FollowedTable:
    """One lookup table of one attempt. `check` is called while files are copied, and may raise to stop that. Only one
    thread at a time may call `poll`; other threads may call everything else at the same time.
    """

    def __init__(
        self,
        name: str,
        source: TableSource,
        roots: Sequence[Root],
        versions: TableVersions,
        check: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.not_used: NotUsed | None = None
        self._source = source
        self._roots = roots
        self._versions = versions
        self._check = check
        self._clock = clock
        self._newest: Version | None = None
        self._changes = threading.Lock()
        """Held while the newest version changes: by a check or by `revert`. Not held during a copy."""
        self._schema: Schema | None = None
        self._copies = re.compile(f"{path_pattern(versions.directory).pattern}{_COPY}")
        self._changing: str | None = None
        self._changing_since = 0.0
        self._refused: dict[str, NotUsed] = {}
        self._retry_at: dict[str, float] = {}
        """When copying may be tried again, by the fingerprint of the files that could not be copied."""

    @property
    def newest(self) -> Version:
        """The newest version. Raises RuntimeError before `open`."""
        if self._newest is None:
            raise RuntimeError(f"the table '{self.name}' was not opened")
        return self._newest

    @property
    def is_changing(self) -> bool:
        """Whether the last check found a change that may not be complete."""
        return self._changing is not None

    def open(self, pause: Callable[[float], object]) -> None:
        """Makes the first version, or a newer one if the table has changed. Waits some seconds until a change is
        complete.

        Raises SpecError and StoreUnavailableError if there is no version yet and none can be made.
        """
        self._versions.drop_drafts()
        self._newest = self._versions.newest()
        if self._newest is None:
            self._copy_first(pause)
            return
        self._schema = read_schema(self.name, self._source, self._newest.files)
        for _ in range(_MAX_POLLS):
            self.poll()
            if not self.is_changing:
                return
            pause(SETTLE_SECONDS)

    def poll(self, slot: CopySlot = nullcontext) -> bool:
        """Checks the table; returns whether there is a new version. One check finds a change, the next copies it."""
        try:
            found, fingerprint = self._listed()
            if fingerprint == self.newest.fingerprint:
                self._changing = self.not_used = None
            elif fingerprint in self._refused:
                self._changing = None
                self._set_not_used(self._refused[fingerprint])
            elif self._clock() < self._retry_at.get(fingerprint, float("-inf")):
                self._changing = None
            elif fingerprint != self._changing:
                self._changing, self._changing_since = fingerprint, self._clock()
            elif not _is_fresh(found) or self._clock() - self._changing_since >= SETTLE_SECONDS:
                return self._copy_version(found, fingerprint, slot)
        except SpecError as error:
            self._changing = None
            self._set_not_used(NotUsed(error.code, error.issues[0].detail))
        except StoreUnavailableError as error:
            self._changing = None
            self._set_not_used(NotUsed(error.code, str(error)))
        return False

    def version(self, number: int) -> Version:
        """Returns the version of this number. Raises SpecError `dimension_missing`."""
        # Read once: a check may replace it at the same time.
        newest = self.newest
        if number == newest.number:
            return newest
        found = self._versions.find(number)
        if found is None:
            raise SpecError.of(
                "dimension_missing",
                f"Version {number} of the table '{self.name}' is missing; a mini-batch that is not complete uses it. "
                'Restore it in EVENKEEL_DATA_STREAMS, or resume with {"from": "scratch"}.',
                pointer=pointer_of(self.name),
            )
        return found

    def input(self, number: int) -> TableInput:
        """Returns the input of this version for the engine. Raises SpecError `dimension_missing`."""
        if self._schema is None:
            raise RuntimeError(f"the table '{self.name}' was not opened")
        return TableInput(self._source, self.version(number).files, self._schema)

    def with_own_names(self, text: str) -> str:
        """Replaces the paths of copies in a message of Spark by those of the table's own files."""
        advice = f" (of the lookup table '{self.name}': replace the file, and resume)"
        place = self._source.path.rstrip("/")

        def own(copy: re.Match[str]) -> str:
            nonlocal advice
            name = self._versions.own_name(int(copy["version"]), copy["copy"])
            text, advice = f"{place}/{name}{advice}" if name else f"{place}{advice}", ""
            return text

        return self._copies.sub(own, text)

    def keep_only(self, numbers: Collection[int]) -> None:
        """Removes the versions older than the newest one, except these."""
        self._versions.keep_only({*numbers, self.newest.number})

    def revert(self, refused: int, number: int, reason: NotUsed) -> None:
        """Returns to the older version `number`, since no plan can be made with the version `refused`, which no
        mini-batch has used. The same files are not copied again. A version that was made since then is kept. Raises
        SpecError `dimension_missing`.
        """
        with self._changes:
            version, older = self.version(refused), self.version(number)
            self._refused[version.fingerprint] = reason
            if self.newest.number == refused:
                self._newest = older
                self._set_not_used(reason)
            self._versions.remove(refused)

    def _copy_first(self, pause: Callable[[float], object]) -> None:
        unreadable: SpecError | None = None
        for _ in range(_MAX_POLLS):
            unreadable = None
            try:
                found, fingerprint = self._listed()
                if _is_fresh(found):
                    pause(SETTLE_SECONDS)
                    if self._listed()[1] != fingerprint:
                        continue
                if self._copy_version(found, fingerprint):
                    return
            except SpecError as error:
                # A file may be removed after it was listed and before it is read. A copy does not change.
                if error.code != "unreadable_file" or self._refused:
                    raise
                unreadable = error
            pause(SETTLE_SECONDS)
        raise unreadable or SpecError.of(
            "table_keeps_changing",
            f"'{self._source.path}' changed during each attempt to copy it. Resume when nothing writes to it, and "
            "replace files by renaming complete ones.",
            pointer=f"{pointer_of(self.name)}/path",
        )

    def _listed(self) -> tuple[TableFiles, str]:
        found = find_table_files(self.name, self._source, self._roots)
        fingerprint = fingerprint_of(found)
        if fingerprint is None:
            raise SpecError.of(
                "table_not_followable",
                f"The store of '{self._source.path}' does not report when files change: remove 'refresh'.",
                pointer=f"{pointer_of(self.name)}/refresh",
            )
        return found, fingerprint

    def _copy_version(self, found: TableFiles, fingerprint: str, slot: CopySlot = nullcontext) -> bool:
        """Copies the files; returns False if they changed meanwhile. Raises SpecError and StoreUnavailableError."""
        try:
            with slot():
                draft = self._versions.copy(found, fingerprint, self._check)
            if self._listed()[1] != fingerprint:
                return False
            # The attempt may have ended during the copy.
            self._check()
            version = self._publish_draft(draft, found)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._retry_at = {fingerprint: self._clock() + _COPY_RETRY_SECONDS}
            raise SpecError.of(
                "dimension_not_copied",
                f"'{self._source.path}' could not be copied: {error.strerror or 'it cannot be read or written'}.",
                pointer=f"{pointer_of(self.name)}/path",
            ) from error
        finally:
            self._versions.drop_drafts()
        with self._changes:
            self._newest = version
            self._changing = self.not_used = None
            self._refused.clear()
        self._retry_at.clear()
        _log.info("dimension_taken", table=self.name, version=version.number, bytes=version.files.bytes)
        return True

    def _publish_draft(self, draft: Draft, found: TableFiles) -> Version:
        """Makes the draft a version. Raises SpecError if the table cannot be read or its columns have changed."""
        try:
            check_all_blocks(self.name, self._source, draft.files)
            schema = read_schema(self.name, self._source, draft.files)
            if self._schema is not None and schema != self._schema:
                raise SpecError.of(
                    "schema_changed",
                    f"'{self._source.path}' had the columns {_columns_text(self._schema)}, and now has "
                    f"{_columns_text(schema)}. "
                    'Restore the previous columns, or resume with {"from": "scratch"}.',
                    pointer=f"{pointer_of(self.name)}/path",
                )
        except SpecError as error:
            named = _with_own_names(error, draft.files, found)
            # Copying the same files again would fail in the same way.
            self._refused[draft.fingerprint] = NotUsed(named.code, named.issues[0].detail)
            raise named from None
        self._schema = schema
        return self._versions.keep(draft)

    def _set_not_used(self, reason: NotUsed) -> None:
        if reason != self.not_used:
            self.not_used = reason
            _log.warning("dimension_not_taken", table=self.name, code=reason.code, detail=reason.detail)


def _is_fresh(found: TableFiles) -> bool:
    """Whether a file of a store may have been written so recently that a further change would not be found. Local files
    have finer times, and inode numbers.
    """
    since = time.time_ns() - _FRESH_SECONDS * 1e9
    return any(isinstance(file, UriFile) and (file.modified or 0) > since for file in found.files)


def _with_own_names(error: SpecError, copies: TableFiles, found: TableFiles) -> SpecError:
    """Replaces the names of copies in the error by those of the table's own files, which the user knows."""
    own = {f"'{copy.name}'": f"'{file.name}'" for copy, file in zip(copies.files, found.files, strict=True)}
    copied = re.compile("|".join(map(re.escape, own)) or "$^")
    return SpecError(
        [
            issue.model_copy(update={"detail": copied.sub(lambda named: own[named.group()], issue.detail)})
            for issue in error.issues
        ]
    )


def _columns_text(schema: Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema.fields)
