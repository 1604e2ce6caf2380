"""Clients that post rows to a stream repeatedly while faults occur, and the expected results of queries over the rows.

A post without a response is repeated unchanged, as the documentation says. Sometimes a successful post is repeated too.
"""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx
from sqlalchemy.exc import SQLAlchemyError

from service.config.settings import Settings
from service.ingest.parsing import NDJSON
from service.store.session import Database, fault_of
from service.streams.append_rows import PostedRows, append_rows
from service.streams.manage_streams import declare_stream
from tests.support.client import JobClient

K = TypeVar("K")

DDL = "k STRING, x BIGINT, y BIGINT, at TIMESTAMP"
SQL = "SELECT k, COUNT(*) AS n, SUM(x) AS s, COUNT(DISTINCT y) AS d FROM t GROUP BY k"
WINDOWS = (
    "SELECT k, TUMBLE_START(at, INTERVAL '1' MINUTE) AS b, COUNT(*) AS n, COUNT(DISTINCT y) AS d FROM t "
    "GROUP BY TUMBLE(at, INTERVAL '1' MINUTE), k"
)

HISTOGRAM = (
    "SELECT k, n, COUNT(*) AS values, SUM(s) AS s FROM "
    "(SELECT k, y, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY k, y) AS u GROUP BY k, n"
)
"""Groups of groups: a new row moves its value from one group to another one."""

Row = tuple[str | None, int | None, int | None, datetime]
Group = tuple[str | None, int, int | None, int]
Bar = tuple[str | None, int, int, int | None]
Window = tuple[str | None, datetime, int, int]
Post = Callable[[str, bytes], bool]
"""Posts a body with a batch id. Returns whether it was accepted; if not, the post must be repeated."""
Make = Callable[[random.Random, datetime], list[Row]]

_KEYS = ("a", "b", "c", "d", "e", None)
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH_SECONDS = 20
_REPEATED_SHARE = 0.15
_ROWS = (1, 40)
_BETWEEN_POSTS_SECONDS = 0.15
"""The pause between two posts. Without it, there would be more files than rows."""


class Expected:
    """The posted rows, and the results of queries over them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def groups(self) -> set[Group]:
        """Returns the result of `SQL`."""
        found = set()
        for k, rows in _by(self.rows, lambda row: row[0]).items():
            known = [x for _, x, _, _ in rows if x is not None]
            found.add((k, len(rows), sum(known) if known else None, _distinct(rows)))
        return found

    def histogram(self) -> set[Bar]:
        """Returns the result of `HISTOGRAM`."""
        found: dict[tuple[str | None, int], list[int | None]] = defaultdict(list)
        for (k, _), rows in _by(self.rows, lambda row: (row[0], row[2])).items():
            known = [x for _, x, _, _ in rows if x is not None]
            found[k, len(rows)].append(sum(known) if known else None)
        return {(k, n, len(sums), _sum(sums)) for (k, n), sums in found.items()}

    def windows(self) -> set[Window]:
        """Returns the result of `WINDOWS` after all windows are closed."""
        by_window = _by(self.rows, lambda row: (row[0], row[3].replace(second=0, tzinfo=None)))
        return {(k, begin, len(rows), _distinct(rows)) for (k, begin), rows in by_window.items()}


class Feeder:
    """A client that posts batches while `feeding` and records all posted rows. `make` returns the rows of a batch; none
    is older than its argument.
    """

    def __init__(self, post: Post, seed: int, prefix: str = "batch", make: Make | None = None) -> None:
        self.posted = Expected()
        self.batches = 0
        self.repeats = 0
        """The number of repeated posts; about half of them were repeated after a failure."""
        self._post = post
        self._make = make or _rows
        self._random = random.Random(seed)
        self._prefix = prefix
        self._stopped = threading.Event()
        self._failure: BaseException | None = None

    def feed(self, batches: int) -> None:
        """Posts this number of batches."""
        for _ in range(batches):
            self._feed_one()

    def close_windows(self) -> None:
        """Posts a row that is an hour later, whose window stays open. `posted` does not contain it."""
        late = (None, None, None, _time_of(self.batches) + timedelta(hours=1))
        assert self._post(f"{self._prefix}-close", _ndjson([late]))

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Posts batches during the block. Raises the error that stopped the posts."""
        self._stopped.clear()
        thread = threading.Thread(target=self._feed_until_stopped, name="feeder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(120)
        if self._failure is not None:
            raise self._failure
        assert not thread.is_alive(), "the last post did not end"

    def _feed_until_stopped(self) -> None:
        try:
            while not self._stopped.wait(_BETWEEN_POSTS_SECONDS):
                self._feed_one()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self._failure = error

    def _feed_one(self) -> None:
        rows = self._make(self._random, _time_of(self.batches))
        body = _ndjson(rows)
        name = f"{self._prefix}-{self.batches:06}"
        while not self._post(name, body):
            self.repeats += 1
            # The service is being restarted.
            self._stopped.wait(_BETWEEN_POSTS_SECONDS)
        self.posted.rows.extend(rows)
        self.batches += 1
        if self._random.random() < _REPEATED_SHARE and self._post(name, body):
            self.repeats += 1


def over_http(client: JobClient, stream: str) -> Post:
    """Returns a function that posts to an API, which may be unavailable."""

    def post(batch_id: str, body: bytes) -> bool:
        try:
            answer = client.http.post(
                f"/v1/streams/{stream}/rows",
                params={"batch_id": batch_id},
                content=body,
                headers={"Content-Type": NDJSON},
            )
        except httpx.TransportError:
            return False
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return False
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
        return True

    return post


def declare_over_http(client: JobClient, stream: str) -> None:
    """Declares a stream with the columns `DDL`."""
    answer = client.http.put(f"/v1/streams/{stream}", json={"schema": DDL})
    assert answer.is_success, answer.text


def within(database: Database, settings: Settings, tenant: str, stream: str) -> Post:
    """Declares a stream with the columns `DDL` and returns a function that posts as the API does, without an API."""
    declare_stream(database, settings.streams_dir, settings.limits, tenant, stream, DDL)

    def post(batch_id: str, body: bytes) -> bool:
        try:
            append_rows(
                database, settings.streams_dir, settings.limits, PostedRows(tenant, stream, batch_id, NDJSON, body)
            )
        except SQLAlchemyError as error:
            if fault_of(error) is None:
                raise
            return False
        return True

    return post


def groups_of(rows: Iterable[Sequence[Any]]) -> set[Group]:
    """Returns the rows of a result as a set. Raises AssertionError if a group occurs twice."""
    listed = [tuple(row) for row in rows]
    found = {(k, n, s, d) for k, n, s, d in listed}
    assert len({k for k, *_ in listed}) == len(listed), f"a group occurs twice: {listed}"
    return found


def _rows(random_: random.Random, begin: datetime) -> list[Row]:
    """Returns random rows: most with one key, some without key or values, and some with repeated values."""
    return [
        (
            random_.choices(_KEYS, (60, 15, 10, 8, 5, 2))[0],
            None if random_.random() < 0.05 else random_.randrange(-1000, 1000),
            None if random_.random() < 0.1 else random_.choice((random_.randrange(300), random_.randrange(10**9))),
            begin + timedelta(seconds=random_.randrange(_BATCH_SECONDS)),
        )
        for _ in range(random_.randint(*_ROWS))
    ]


def _time_of(batch: int) -> datetime:
    """Returns the start time of a batch; no row of a batch is older than those of earlier batches."""
    return _BEGIN + timedelta(seconds=_BATCH_SECONDS * batch)


def _by(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    found: dict[K, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _distinct(rows: Iterable[Row]) -> int:
    return len({y for _, _, y, _ in rows if y is not None})


def _ndjson(rows: Iterable[Row]) -> bytes:
    lines = (json.dumps({"k": k, "x": x, "y": y, "at": at.isoformat()}) for k, x, y, at in rows)
    return "".join(f"{line}\n" for line in lines).encode()
