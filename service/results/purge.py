"""Removes what has been kept for the retention time: ended jobs, results, expired keys, and files that no job names.

Rows are deleted first, files after the commit. If the process is killed in between, files remain without a job or
without a job that names them, and the next purge removes them as leftovers. In the other order, a job could name a
result that does not exist.

Files are removed only from directories that this installation owns. A restored copy of the database may share the
results directory, and everything newer than the copy would look like a leftover to it.
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
from service.store import installation, jobs, maintenance
from service.store.jobs import read_versions
from service.store.maintenance import Removed
from service.store.publication import published_paths
from service.store.session import Database

_log = structlog.get_logger(__name__)

_DAY_MS = 24 * 60 * 60 * 1000
_JOBS_PER_STEP = 200
"""Jobs in one transaction: it takes a few milliseconds, so that other writers are not delayed."""

_KEYS_PER_STEP = 5000
_LEFTOVERS_KEPT_MS = _DAY_MS
"""The directory of a running attempt is younger than this."""

_LONGEST_PAUSE_SECONDS = 0.2

_Step = Callable[[Session, int, int, int], Sequence[Removed]]


@dataclass(frozen=True)
class Limits:
    """Retention times in milliseconds: of ended jobs, and of results of ended jobs. None means forever."""

    jobs_ms: int | None
    results_ms: int | None

    @classmethod
    def of(cls, settings: RetentionSettings) -> Limits:
        """Returns the configured limits; 0 days means forever."""
        return cls(
            settings.jobs_days * _DAY_MS if settings.jobs_days else None,
            settings.results_days * _DAY_MS if settings.results_days else None,
        )


@dataclass(frozen=True)
class Purged:
    """What was removed. `results` and `bytes` include results that were removed with their jobs; `leftovers` are
    directories.
    """

    jobs: int = 0
    results: int = 0
    keys: int = 0
    leftovers: int = 0
    bytes: int = 0

    def __add__(self, other: Purged) -> Purged:
        """Returns the sums."""
        return Purged(
            self.jobs + other.jobs,
            self.results + other.results,
            self.keys + other.keys,
            self.leftovers + other.leftovers,
            self.bytes + other.bytes,
        )

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was removed."""
        return self == Purged()


@dataclass(frozen=True)
class _Due:
    """What a purge removes; `would_purge` only counts it. Times are in milliseconds since the epoch."""

    now: int
    jobs_before: int | None
    results_before: int | None
    results: Path | None
    """The directory of results; None if another installation owns it."""
    streams: Path | None
    """The directory of streams; None if another installation owns it."""

    @classmethod
    def of(cls, now: int, limits: Limits, results: Path | None, streams: Path | None) -> _Due:
        """Returns what is due at `now`."""
        before = [None if kept is None else now - kept for kept in (limits.jobs_ms, limits.results_ms)]
        return cls(now, before[0], before[1], results, streams)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The directories that this installation owns; each contains one directory for each job."""
        return tuple(folder for folder in (self.results, self.streams) if folder is not None)


@dataclass(frozen=True)
class _Leftover:
    """Directories of one job that no row names."""

    paths: Sequence[Path]
    remove: Callable[[], Freed]


def purge(database: Database, results: Path, streams: Path, limits: Limits) -> Iterator[Purged]:
    """Removes step by step, and yields what each step removed; a caller that stops iterating stops the purge.

    No transaction is open between two steps, so that others can write while the caller pauses.
    """
    with database.write() as session:
        now = database.now(session)
        own = installation.ensure_id(session)
    # After the commit: a directory must not be claimed with an id that no database contains.
    due = _Due.of(now, limits, *_ours(results, streams, lambda folder: directories.claim_directory(folder, own)))
    # Before the jobs: deleting a job deletes its keys, which are then not counted.
    yield from _expired_keys(database, now)
    if due.jobs_before is not None:
        for gone in _in_batches(database, maintenance.remove_jobs, due.jobs_before):
            yield _remove_files(due, gone, Purged(jobs=len(gone)))
    if due.results_before is not None:
        for gone in _in_batches(database, maintenance.remove_results, due.results_before):
            yield _remove_files(due, gone, Purged())
    for folder in (results, streams):
        if folder not in due.folders:
            _log.warning("results_of_another_installation", results=str(folder), installation=own)
    for some in _leftovers(database, due):
        for leftover in some:
            freed = leftover.remove()
            if freed.directories:
                yield Purged(leftovers=freed.directories, bytes=freed.bytes)
        # Also if existing was no leftover: the caller may stop or pause here.
        yield Purged()


def purge_with_pauses(
    database: Database, results: Path, streams: Path, limits: Limits, may_continue: Callable[[], bool] = lambda: True
) -> Purged:
    """Purges everything, or until `may_continue` returns False. Pauses after each step for as long as the step took, so
    that other users of the database are not delayed.
    """
    removed = Purged()
    started = time.monotonic()
    for step in purge(database, results, streams, limits):
        removed += step
        if not may_continue():
            break
        # In SQLite, a waiting writer retries after up to 0.1 s; no write must be in progress then.
        time.sleep(min(time.monotonic() - started, _LONGEST_PAUSE_SECONDS))
        started = time.monotonic()
    return removed


def would_purge(database: Database, results: Path, streams: Path, limits: Limits) -> Purged:
    """Returns what `purge` would remove now; changes nothing."""
    with database.read() as session:
        now = database.now(session)
        own = installation.find_id(session)
        due = _Due.of(now, limits, *_ours(results, streams, lambda folder: directories.is_own_directory(folder, own)))
        expired = maintenance.count_expired(session, due.jobs_before, due.results_before)
        keys = jobs.count_expired_keys(session, now)
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
            gone = step(session, before, since, _JOBS_PER_STEP)
        if not gone:
            return
        yield gone
        # Older jobs have been handled: do not read thousands of jobs again whose results were removed earlier.
        since = max(job.finished_at for job in gone)


def _remove_files(due: _Due, gone: Sequence[Removed], counted: Purged) -> Purged:
    """Removes files of the jobs, and adds the removed results to `counted`."""
    for job in gone:
        for folder in due.folders:
            is_removed = directories.remove_job_directory(folder, job.job_id)
            if is_removed and folder == due.results:
                counted += Purged(results=int(job.had_result), bytes=job.bytes)
    return counted


def _expired_keys(database: Database, now: int) -> Iterator[Purged]:
    while True:
        with database.write() as session:
            keys = jobs.remove_expired_keys(session, now, _KEYS_PER_STEP)
        if not keys:
            return
        yield Purged(keys=keys)


def _leftovers(database: Database, due: _Due) -> Iterator[list[_Leftover]]:
    """Yields old directories that no row names, in batches; excludes those that are removed with their jobs."""
    long_ago = (due.now - _LEFTOVERS_KEPT_MS) / 1000
    if due.results is not None:
        for job_ids in directories.jobs_unchanged_since(due.results, long_ago, _JOBS_PER_STEP):
            with database.read() as session:
                published = published_paths(session, job_ids)
                expiring = maintenance.find_expired(session, job_ids, due.jobs_before, due.results_before)
            yield [
                _of_results(due.results, job_id, published[job_id]) for job_id in published if job_id not in expiring
            ]
    if due.streams is not None:
        for job_ids in directories.jobs_unchanged_since(due.streams, long_ago, _JOBS_PER_STEP):
            with database.read() as session:
                existing = read_versions(session, job_ids)
            yield [_of_streams(due.streams, job_id) for job_id in job_ids if job_id not in existing]


def _of_results(results: Path, job_id: str, published: str | None) -> _Leftover:
    paths = directories.unpublished(results, job_id, published)
    return _Leftover(paths, partial(directories.remove_unpublished, results, job_id, published))


def _of_streams(streams: Path, job_id: str) -> _Leftover:
    return _Leftover([streams / job_id], partial(directories.remove_whole, streams, job_id))
