"""Removes what has been kept for long enough: jobs that ended, results, expired keys, and files that no job names.

Rows go first, files after the commit. A process that is killed in between leaves files without a job, or without a job
that names them, and the next purge finds those as left over. The other way round, a job would promise a result that
is gone.

Files are removed in a results directory of this installation alone: to the copy of a database, which a rehearsal of a
restore may have on the same share, everything that is newer than the copy looks left over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy.orm import Session

from service.config.settings import RetentionSettings
from service.results import directories
from service.results.directories import Freed
from service.store import installation, maintenance
from service.store.jobs import read_versions
from service.store.maintenance import Removed
from service.store.publication import published_paths
from service.store.session import Database

_log = structlog.get_logger(__name__)

_DAY_MS = 24 * 60 * 60 * 1000
_AT_ONCE = 200
"""Jobs in one transaction: some milliseconds, so that others write in between."""

_KEYS_AT_ONCE = 5000
_LEFTOVERS_KEPT_MS = _DAY_MS
"""An attempt that is being written has a directory that is younger."""

_LONGEST_PAUSE_SECONDS = 0.2

_Step = Callable[[Session, int, int, int], Sequence[Removed]]


@dataclass(frozen=True)
class Limits:
    """Jobs that ended longer ago than `jobs_ms` go, and results of those that ended longer ago than `results_ms`.

    In milliseconds; None keeps them for ever.
    """

    jobs_ms: int | None
    results_ms: int | None

    @classmethod
    def of(cls, settings: RetentionSettings) -> Limits:
        """As configured: 0 days are for ever."""
        return cls(
            settings.jobs_days * _DAY_MS if settings.jobs_days else None,
            settings.results_days * _DAY_MS if settings.results_days else None,
        )


@dataclass(frozen=True)
class Purged:
    """What was removed. `results` and `bytes` include those that went with their jobs; `leftovers` are directories."""

    jobs: int = 0
    results: int = 0
    keys: int = 0
    leftovers: int = 0
    bytes: int = 0

    def __add__(self, other: Purged) -> Purged:
        """Both together."""
        return Purged(
            self.jobs + other.jobs,
            self.results + other.results,
            self.keys + other.keys,
            self.leftovers + other.leftovers,
            self.bytes + other.bytes,
        )

    @property
    def is_nothing(self) -> bool:
        """Whether there was nothing to remove."""
        return self == Purged()


@dataclass(frozen=True)
class _Due:
    """What a purge removes: `purge` does so, `would_purge` counts it. Times in milliseconds since the epoch."""

    now: int
    jobs_before: int | None
    results_before: int | None
    results: Path | None
    """The directory of results; None where it belongs to another installation."""
    streams: Path | None
    """The directory of streams; None likewise."""

    @classmethod
    def of(cls, now: int, limits: Limits, results: Path | None, streams: Path | None) -> _Due:
        """What is due at `now`."""
        before = [None if kept is None else now - kept for kept in (limits.jobs_ms, limits.results_ms)]
        return cls(now, before[0], before[1], results, streams)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The directories of this installation, which hold one directory a job."""
        return tuple(folder for folder in (self.results, self.streams) if folder is not None)


@dataclass(frozen=True)
class _Leftover:
    """Directories of one job that no row names."""

    paths: Sequence[Path]
    remove: Callable[[], Freed]


def purge(database: Database, results: Path, streams: Path, limits: Limits) -> Iterator[Purged]:
    """Removes step by step, and yields after each step what it removed; a caller that stops iterating stops it.

    Between two steps no transaction is open: a caller that pauses there lets others write.
    """
    with database.write() as session:
        now = database.now(session)
        own = installation.ensure_id(session)
    # After the commit: a directory must not bear an id that no database has.
    due = _Due.of(now, limits, *_ours(results, streams, lambda folder: directories.belongs_to(folder, own)))
    # Before the jobs, with which their keys are deleted uncounted.
    yield from _expired_keys(database, now)
    if due.jobs_before is not None:
        for gone in _in_batches(database, maintenance.remove_jobs, due.jobs_before):
            yield _remove_files(due, gone, Purged(jobs=len(gone)))
    if due.results_before is not None:
        for gone in _in_batches(database, maintenance.forget_results, due.results_before):
            yield _remove_files(due, gone, Purged())
    for folder in (results, streams):
        if folder not in due.folders:
            _log.warning("results_of_another_installation", results=str(folder), installation=own)
    for some in _leftovers(database, due):
        for leftover in some:
            freed = leftover.remove()
            if freed.directories:
                yield Purged(leftovers=freed.directories, bytes=freed.bytes)
        # Also where nothing was left over: the caller may stop here, or pause.
        yield Purged()


def purge_politely(
    database: Database, results: Path, streams: Path, limits: Limits, goes_on: Callable[[], bool] = lambda: True
) -> Purged:
    """All of it, or until `goes_on` says no, pausing as long as it works: the database has other things to do."""
    removed = Purged()
    started = time.monotonic()
    for step in purge(database, results, streams, limits):
        removed += step
        if not goes_on():
            break
        # On SQLite, who waits to write looks again after up to a tenth of a second, and must find nobody writing.
        time.sleep(min(time.monotonic() - started, _LONGEST_PAUSE_SECONDS))
        started = time.monotonic()
    return removed


def would_purge(database: Database, results: Path, streams: Path, limits: Limits) -> Purged:
    """What `purge` would remove now; changes nothing."""
    with database.read() as session:
        now = database.now(session)
        own = installation.find_id(session)
        due = _Due.of(now, limits, *_ours(results, streams, lambda folder: directories.bears(folder, own)))
        expired = maintenance.count_expired(session, due.jobs_before, due.results_before)
        keys = maintenance.count_expired_keys(session, now)
    found = Purged(jobs=expired.jobs, keys=keys)
    if due.results is not None:
        found += Purged(results=expired.results, bytes=expired.bytes)
    for some in _leftovers(database, due):
        for leftover in some:
            size = sum(directories.size_of(path) for path in leftover.paths)
            found += Purged(leftovers=len(leftover.paths), bytes=size)
    return found


def _ours(results: Path, streams: Path, is_ours: Callable[[Path], bool]) -> tuple[Path | None, Path | None]:
    return results if is_ours(results) else None, streams if is_ours(streams) else None


def _in_batches(database: Database, step: _Step, before: int) -> Iterator[Sequence[Removed]]:
    since = 0
    while True:
        with database.write() as session:
            gone = step(session, before, since, _AT_ONCE)
        if not gone:
            return
        yield gone
        # What is older was looked at: thousands of jobs that lost their results before are not read again and again.
        since = max(job.finished_at for job in gone)


def _remove_files(due: _Due, gone: Sequence[Removed], counted: Purged) -> Purged:
    """Adds to `counted` the results whose files are removed."""
    for job in gone:
        for folder in due.folders:
            is_removed = directories.remove_job_directory(folder, job.job_id)
            if is_removed and folder == due.results:
                counted += Purged(results=int(job.had_result), bytes=job.bytes)
    return counted


def _expired_keys(database: Database, now: int) -> Iterator[Purged]:
    while True:
        with database.write() as session:
            keys = maintenance.remove_expired_keys(session, now, _KEYS_AT_ONCE)
        if not keys:
            return
        yield Purged(keys=keys)


def _leftovers(database: Database, due: _Due) -> Iterator[list[_Leftover]]:
    """Directories of some age that no row names, a portion at a time; without those that go with their jobs."""
    long_ago = (due.now - _LEFTOVERS_KEPT_MS) / 1000
    if due.results is not None:
        for job_ids in directories.jobs_unchanged_since(due.results, long_ago, _AT_ONCE):
            with database.read() as session:
                published = published_paths(session, job_ids)
                going = maintenance.find_expired(session, job_ids, due.jobs_before, due.results_before)
            yield [_of_results(due.results, job_id, published[job_id]) for job_id in published if job_id not in going]
    if due.streams is not None:
        for job_ids in directories.jobs_unchanged_since(due.streams, long_ago, _AT_ONCE):
            with database.read() as session:
                there = read_versions(session, job_ids)
            yield [_of_streams(due.streams, job_id) for job_id in job_ids if job_id not in there]


def _of_results(results: Path, job_id: str, published: str | None) -> _Leftover:
    paths = directories.unpublished(results, job_id, published)
    return _Leftover(paths, partial(directories.remove_unpublished, results, job_id, published))


def _of_streams(streams: Path, job_id: str) -> _Leftover:
    return _Leftover([streams / job_id], partial(directories.remove_whole, streams, job_id))
