"""Removes what has been kept for long enough: jobs that ended, results, expired keys, and files that no job names.

Rows go first, files after the commit. A process that is killed in between leaves files without a job, or without a job
that names them, and the next purge finds those as left over. The other way round, a job would promise a result that
is gone.

Files are removed in a results directory of this installation alone: to the copy of a database, which a rehearsal of a
restore may have on the same share, everything that is newer than the copy looks left over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from sqlalchemy.orm import Session

from service.results import directories, owner
from service.settings import RetentionSettings
from service.store import installation, retention
from service.store.jobs import read_versions
from service.store.publication import published_paths
from service.store.retention import Removed
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


def purge(database: Database, results: Path, streams: Path, limits: Limits) -> Iterator[Purged]:
    """Removes step by step and tells after each what went; whoever stops asking stops it.

    Between two steps no transaction is open: a caller that pauses there lets others write.
    """
    with database.write() as session:
        now = database.now(session)
        own = installation.ensure_id(session)
    # After the commit: a directory must not bear an id that no database has.
    files = _Files({folder: owner.belongs_to(folder, own) for folder in (results, streams)}, results)
    if limits.jobs_ms is not None:
        for gone in _in_batches(database, retention.remove_jobs, now - limits.jobs_ms):
            yield files.remove_with(gone, Purged(jobs=len(gone)))
    if limits.results_ms is not None:
        for gone in _in_batches(database, retention.forget_results, now - limits.results_ms):
            yield files.remove_with(gone, Purged())
    yield from _expired_keys(database, now)
    if files.are_ours(results):
        yield from _leftovers(database, results, now)
    else:
        _log.warning("results_of_another_installation", results=str(results), installation=own)
    if files.are_ours(streams):
        yield from _leftover_streams(database, streams, now)
    else:
        _log.warning("results_of_another_installation", results=str(streams), installation=own)


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
    """What `purge` would remove of jobs, results, keys and directories; changes nothing."""
    with database.read() as session:
        now = database.now(session)
        before = [None if kept is None else now - kept for kept in (limits.jobs_ms, limits.results_ms)]
        expired = retention.count_expired(session, *before)
        keys = retention.count_expired_keys(session, now)
        own = installation.find_id(session)
    if not owner.bears(results, own):
        return Purged(jobs=expired.jobs, keys=keys)
    found = Purged(jobs=expired.jobs, results=expired.results, keys=keys, bytes=expired.bytes)
    for some in _unclaimed(database, results, now):
        for job_id, published in some.items():
            paths = directories.unpublished(results, job_id, published)
            found += Purged(leftovers=len(paths), bytes=sum(directories.size_of(path) for path in paths))
    if owner.bears(streams, own):
        for gone in _ownerless(database, streams, now):
            found += Purged(leftovers=len(gone), bytes=sum(directories.size_of(streams / job_id) for job_id in gone))
    return found


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


@dataclass(frozen=True)
class _Files:
    ours: Mapping[Path, bool]
    """The directories with jobs' directories in them -> whether they are this installation's."""
    results: Path

    def are_ours(self, folder: Path) -> bool:
        return self.ours[folder]

    def remove_with(self, gone: Sequence[Removed], counted: Purged) -> Purged:
        """Adds to `counted` the results whose files are gone now."""
        for folder in self.ours:
            if folder != self.results and self.are_ours(folder):
                for job in gone:
                    directories.remove_job_directory(folder, job.job_id)
        removed = [
            job
            for job in gone
            if self.are_ours(self.results) and directories.remove_job_directory(self.results, job.job_id)
        ]
        return counted + Purged(results=sum(job.had_result for job in removed), bytes=sum(job.bytes for job in removed))


def _expired_keys(database: Database, now: int) -> Iterator[Purged]:
    while True:
        with database.write() as session:
            keys = retention.remove_expired_keys(session, now, _KEYS_AT_ONCE)
        if not keys:
            return
        yield Purged(keys=keys)


def _leftovers(database: Database, results: Path, now: int) -> Iterator[Purged]:
    for some in _unclaimed(database, results, now):
        for job_id, published in some.items():
            freed = directories.remove_unpublished(results, job_id, published)
            if freed.directories:
                yield Purged(leftovers=freed.directories, bytes=freed.bytes)
        # Where all is sound too: whoever asks may stop it, and others have their pause.
        yield Purged()


def _leftover_streams(database: Database, streams: Path, now: int) -> Iterator[Purged]:
    for gone in _ownerless(database, streams, now):
        for job_id in gone:
            freed = directories.remove_whole(streams, job_id)
            if freed.directories:
                yield Purged(leftovers=freed.directories, bytes=freed.bytes)
        yield Purged()


def _ownerless(database: Database, streams: Path, now: int) -> Iterator[list[str]]:
    """Directories of some age of jobs that are gone, a portion at a time."""
    long_ago = (now - _LEFTOVERS_KEPT_MS) / 1000
    for job_ids in directories.jobs_unchanged_since(streams, long_ago, _AT_ONCE):
        with database.read() as session:
            there = read_versions(session, job_ids)
        yield [job_id for job_id in job_ids if job_id not in there]


def _unclaimed(database: Database, results: Path, now: int) -> Iterator[dict[str, str | None]]:
    """Jobs that ended or are gone and have a directory of some age, each with the path that it still publishes.

    A portion at a time.
    """
    long_ago = (now - _LEFTOVERS_KEPT_MS) / 1000
    for job_ids in directories.jobs_unchanged_since(results, long_ago, _AT_ONCE):
        with database.read() as session:
            published = published_paths(session, job_ids)
        yield published
