"""The looks of one attempt at the tables that it follows, one after the other, each on a thread of its own: a table may
be large and its store slow, and whoever looks at the stream is not to wait for that.

Copies take one of a few places, and nothing else does: stores that hang keep nobody from seeing what others have.

One table that a stream follows: looked at now and then, and copied as a new version once it has changed and settled.

What is caught in the midst of being written is not taken: a change has to look the same twice in a row, and once more
when its files are copied. A table without a file is never taken for one without rows, nor one whose columns are others:
the stream goes on with the version that it has, and says so. (A table without rows is a file without rows.)
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

import structlog

from service.contract.job import TableSource
from service.contract.problems import SpecError
from service.data.file_io import UriFile
from service.data.files import TableFiles, find_table_files, pointer_of
from service.data.roots import Root, StoreUnavailableError
from service.data.schemas import read_schema
from service.sql.types.data_types import Schema
from workers.engine.spark.sources import TableInput
from workers.jobs.attempt import AttemptStopped
from workers.jobs.outcome import path_pattern
from workers.streams.lookup_table_versions import DimensionVersions, Draft, Version, fingerprint_of

AT_ONCE = 4
"""Looks of a worker that copy at the same time: they contend for its disk and its network."""

_PLACE_SECONDS = 0.2
_END_SECONDS = 2.0


class TableLooks:
    """`check` raises AttemptStopped once the attempt is to end; `places` are those of all attempts of a worker. One
    thread at a time calls it; `check` is for the looks themselves.
    """

    def __init__(self, check: Callable[[], object], places: threading.Semaphore) -> None:
        self._check = check
        self._places = places
        self._ended = threading.Event()
        self._answer: Future[bool] | None = None

    def check(self) -> None:
        """Called while files are copied. Raises AttemptStopped once the attempt is to end, or has ended."""
        if self._ended.is_set():
            raise AttemptStopped("the attempt has ended")
        self._check()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Holds the place of a copy, once one is free. Raises as `check`."""
        while not self._places.acquire(timeout=_PLACE_SECONDS):
            self.check()
        try:
            yield
        finally:
            self._places.release()

    @property
    def is_under_way(self) -> bool:
        """Whether there is a look that was begun and has not ended."""
        return self._answer is not None and not self._answer.done()

    def begin(self, look: Callable[[], bool]) -> None:
        """Begins a look, of which `found` has not to be told any more. Returns at once."""
        answer: Future[bool] = Future()
        # A daemon, and no pool, whose threads would keep a process from ending.
        thread = threading.Thread(
            target=copy_context().run, args=(self._look, look, answer), name="follow", daemon=True
        )
        thread.start()
        self._answer = answer

    def found(self) -> bool | None:
        """What the last look came to, told once, or what it raised; None where there is nothing to tell."""
        answer = self._answer
        if answer is None or not answer.done():
            return None
        self._answer = None
        return answer.result()

    def end(self) -> None:
        """With the attempt: a look that is under way ends within a few megabytes, for which is waited a moment."""
        self._ended.set()
        if self._answer is not None:
            wait([self._answer], _END_SECONDS)

    def _look(self, look: Callable[[], bool], answer: Future[bool]) -> None:
        try:
            found = look()
        except AttemptStopped:
            answer.set_result(False)
        except BaseException as error:  # noqa: BLE001 - told to the one who asks
            answer.set_exception(error)
        else:
            answer.set_result(found)


_log = structlog.get_logger(__name__)

SETTLE_SECONDS = 2.0
"""A change that looks the same after so long is a change that is complete."""

_FRESH_SECONDS = 60.0
"""Stores tell times of change by the second: a file that was written twice within one, with as many bytes, looks the
same. One with an older time was not written just now, whatever the clocks of the store and of this machine differ by.
"""

_LOOKS = 5
"""How often a table that keeps changing is looked at before the stream starts without its newest version."""

_PUT_OFF_SECONDS = 300.0
"""How long a copy that the disk did not take is not tried again."""


_COPY = r"/v(?P<version>\d{1,9})/(?P<copy>\d+(?:\.[A-Za-z0-9_-]{1,16}){0,2})"
"""A copy's path below that of all of a table's copies."""


@dataclass(frozen=True)
class HeldBack:
    """Why the table as it is now is not taken."""

    code: str
    detail: str


Place = Callable[[], AbstractContextManager[object]]
"""What a copy is made within."""


class FollowedTable:
    """One table of one attempt. `check` is called while files are copied, and ends that by what it raises. One thread
    at a time looks; others may do all the rest meanwhile.
    """

    def __init__(
        self,
        name: str,
        source: TableSource,
        roots: Sequence[Root],
        versions: DimensionVersions,
        check: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.held_back: HeldBack | None = None
        self._source = source
        self._roots = roots
        self._versions = versions
        self._check = check
        self._clock = clock
        self._newest: Version | None = None
        self._changes = threading.Lock()
        """Of two that change what is newest: a look and who goes back. Held for no copy."""
        self._schema: Schema | None = None
        self._copies = re.compile(f"{path_pattern(versions.directory).pattern}{_COPY}")
        self._changing: str | None = None
        self._changing_since = 0.0
        self._refused: dict[str, HeldBack] = {}
        self._put_off: dict[str, float] = {}
        """Until when, by the fingerprint of what could not be copied."""

    @property
    def newest(self) -> Version:
        """The newest version that was taken; `open` comes first."""
        if self._newest is None:
            raise RuntimeError(f"the table '{self.name}' was not opened")
        return self._newest

    @property
    def is_changing(self) -> bool:
        """Whether the last look found a change that may not be complete."""
        return self._changing is not None

    def open(self, pause: Callable[[float], object]) -> None:
        """Takes the first version, or a newer one than there is; waits a few seconds for a change to be complete.

        Raises SpecError and StoreUnavailableError where there is no version yet and none can be taken.
        """
        self._versions.drop_drafts()
        self._newest = self._versions.newest()
        if self._newest is None:
            self._take_first(pause)
            return
        self._schema = read_schema(self.name, self._source, self._newest.files)
        for _ in range(_LOOKS):
            self.look()
            if not self.is_changing:
                return
            pause(SETTLE_SECONDS)

    def look(self, place: Place = nullcontext) -> bool:
        """Whether there is a newer version now. A change is seen by one look, and taken by the next."""
        try:
            found, fingerprint = self._listed()
            if fingerprint == self.newest.fingerprint:
                self._changing = self.held_back = None
            elif fingerprint in self._refused:
                self._changing = None
                self._hold_back(self._refused[fingerprint])
            elif self._clock() < self._put_off.get(fingerprint, float("-inf")):
                self._changing = None
            elif fingerprint != self._changing:
                self._changing, self._changing_since = fingerprint, self._clock()
            elif not _is_fresh(found) or self._clock() - self._changing_since >= SETTLE_SECONDS:
                return self._take(found, fingerprint, place)
        except SpecError as error:
            self._changing = None
            self._hold_back(HeldBack(error.code, error.issues[0].detail))
        except StoreUnavailableError as error:
            self._changing = None
            self._hold_back(HeldBack(error.code, str(error)))
        return False

    def version(self, number: int) -> Version:
        """One of the versions. Raises SpecError `dimension_missing`."""
        # Looked up once: a look may be under way.
        newest = self.newest
        if number == newest.number:
            return newest
        found = self._versions.find(number)
        if found is None:
            raise SpecError.of(
                "dimension_missing",
                f"Version {number} of the table '{self.name}' is gone, with which a mini-batch was begun that is not "
                'done. Put it back into EVENKEEL_DATA_STREAMS, or resume with {"from": "scratch"}.',
                pointer=pointer_of(self.name),
            )
        return found

    def input(self, number: int) -> TableInput:
        """A version as the engine reads it. Raises SpecError `dimension_missing`."""
        if self._schema is None:
            raise RuntimeError(f"the table '{self.name}' was not opened")
        return TableInput(self._source, self.version(number).files, self._schema)

    def of_own_files(self, text: str) -> str:
        """A text of Spark's with the table's own files in the place of their copies, which nobody is to mend."""
        advice = f" (of the table '{self.name}', which is followed: mend the file in its place, and resume)"
        place = self._source.path.rstrip("/")

        def own(copy: re.Match[str]) -> str:
            nonlocal advice
            name = self._versions.own_name(int(copy["version"]), copy["copy"])
            told, advice = f"{place}/{name}{advice}" if name else f"{place}{advice}", ""
            return told

        return self._copies.sub(own, text)

    def keep_only(self, numbers: Collection[int]) -> None:
        """Removes versions below the newest that nothing can need: all but these."""
        self._versions.keep_only({*numbers, self.newest.number})

    def go_back(self, refused: int, number: int, reason: HeldBack) -> None:
        """Goes back to an older version, since a newer one, which no mini-batch has begun with, cannot be planned with.
        It is not taken again as it is. One that was taken since then stays. Raises SpecError `dimension_missing`.
        """
        with self._changes:
            version, older = self.version(refused), self.version(number)
            self._refused[version.fingerprint] = reason
            if self.newest.number == refused:
                self._newest = older
                self._hold_back(reason)
            self._versions.remove(refused)

    def _take_first(self, pause: Callable[[float], object]) -> None:
        unreadable: SpecError | None = None
        for _ in range(_LOOKS):
            unreadable = None
            try:
                found, fingerprint = self._listed()
                if _is_fresh(found):
                    pause(SETTLE_SECONDS)
                    if self._listed()[1] != fingerprint:
                        continue
                if self._take(found, fingerprint):
                    return
            except SpecError as error:
                # A file may be gone between its listing and a look at it; what was copied stays as it is.
                if error.code != "unreadable_file" or self._refused:
                    raise
                unreadable = error
            pause(SETTLE_SECONDS)
        raise unreadable or SpecError.of(
            "table_keeps_changing",
            f"'{self._source.path}' changes while it is copied, each time. Resume once it is left alone, and replace "
            "its files by renaming whole ones.",
            pointer=f"{pointer_of(self.name)}/path",
        )

    def _listed(self) -> tuple[TableFiles, str]:
        found = find_table_files(self.name, self._source, self._roots)
        fingerprint = fingerprint_of(found)
        if fingerprint is None:
            raise SpecError.of(
                "table_not_followable",
                f"The store of '{self._source.path}' does not tell when files change: remove 'follow'.",
                pointer=f"{pointer_of(self.name)}/follow",
            )
        return found, fingerprint

    def _take(self, found: TableFiles, fingerprint: str, place: Place = nullcontext) -> bool:
        """Copies the files, unless they change meanwhile. Raises SpecError and StoreUnavailableError."""
        try:
            with place():
                draft = self._versions.copy(found, fingerprint, self._check)
            if self._listed()[1] != fingerprint:
                return False
            # Nobody may be there any more whom the version would be for.
            self._check()
            taken = self._accepted(draft, found)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._put_off = {fingerprint: self._clock() + _PUT_OFF_SECONDS}
            raise SpecError.of(
                "dimension_not_copied",
                f"'{self._source.path}' could not be copied: {error.strerror or 'it cannot be read or written'}.",
                pointer=f"{pointer_of(self.name)}/path",
            ) from error
        finally:
            self._versions.drop_drafts()
        with self._changes:
            self._newest = taken
            self._changing = self.held_back = None
            self._refused.clear()
        self._put_off.clear()
        _log.info("dimension_taken", table=self.name, version=taken.number, bytes=taken.files.bytes)
        return True

    def _accepted(self, draft: Draft, found: TableFiles) -> Version:
        """The draft of what was found as a version, unless its columns are others. Raises SpecError."""
        try:
            schema = read_schema(self.name, self._source, draft.files)
            if self._schema is not None and schema != self._schema:
                raise SpecError.of(
                    "schema_changed",
                    f"'{self._source.path}' had the columns {_told(self._schema)}, and has {_told(schema)} now. Give "
                    'it those of before, or resume with {"from": "scratch"}.',
                    pointer=f"{pointer_of(self.name)}/path",
                )
        except SpecError as error:
            told = _of_own_files(error, draft.files, found)
            # It will not be another one by copying it again.
            self._refused[draft.fingerprint] = HeldBack(told.code, told.issues[0].detail)
            raise told from None
        self._schema = schema
        return self._versions.keep(draft)

    def _hold_back(self, held_back: HeldBack) -> None:
        if held_back != self.held_back:
            self.held_back = held_back
            _log.warning("dimension_not_taken", table=self.name, code=held_back.code, detail=held_back.detail)


def _is_fresh(found: TableFiles) -> bool:
    """Whether a file of a store may have been written so lately that another change of it would not be seen. Files of
    this machine have finer times, and numbers.
    """
    since = time.time_ns() - _FRESH_SECONDS * 1e9
    return any(isinstance(file, UriFile) and (file.modified or 0) > since for file in found.files)


def _of_own_files(error: SpecError, copies: TableFiles, found: TableFiles) -> SpecError:
    """The error with the names of the table's own files: nobody knows those of the copies."""
    own = {f"'{copy.name}'": f"'{file.name}'" for copy, file in zip(copies.files, found.files, strict=True)}
    copied = re.compile("|".join(map(re.escape, own)) or "$^")
    return SpecError(
        [
            issue.model_copy(update={"detail": copied.sub(lambda named: own[named.group()], issue.detail)})
            for issue in error.issues
        ]
    )


def _told(schema: Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema.fields)
