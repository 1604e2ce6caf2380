"""Rows that are posted to a stream, over and over while things break, and what a query over them must give.

A post whose answer did not come is repeated as it was, as clients are told to; now and then one that was answered is
repeated too.
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

Row = tuple[str | None, int | None, int | None, datetime]
Group = tuple[str | None, int, int | None, int]
Window = tuple[str | None, datetime, int, int]
Post = Callable[[str, bytes], bool]
"""Posts a body under a batch id. Whether it was taken; False where it is to be repeated."""
Make = Callable[[random.Random, datetime], list[Row]]

_KEYS = ("a", "b", "c", "d", "e", None)
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH_SECONDS = 20
_REPEATED = 0.15
_ROWS = (1, 40)
_BREATH_SECONDS = 0.15
"""Between two posts: faster, files would outnumber the rows; it orders nothing."""


class Expected:
    """What was posted, and what queries give over it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def groups(self) -> set[Group]:
        """What `SQL` gives."""
        found = set()
        for k, rows in _by(self.rows, lambda row: row[0]).items():
            known = [x for _, x, _, _ in rows if x is not None]
            found.add((k, len(rows), sum(known) if known else None, _distinct(rows)))
        return found

    def windows(self) -> set[Window]:
        """What `WINDOWS` gives, once all of them are closed."""
        by_window = _by(self.rows, lambda row: (row[0], row[3].replace(second=0, tzinfo=None)))
        return {(k, begin, len(rows), _distinct(rows)) for (k, begin), rows in by_window.items()}


class Feeder:
    """A client that posts batch after batch while `feeding`, and knows what it has posted in all. `make` makes the rows
    of a batch, of which none is older than the time that it is given.
    """

    def __init__(self, post: Post, seed: int, prefix: str = "batch", make: Make | None = None) -> None:
        self.posted = Expected()
        self.batches = 0
        self.repeats = 0
        """Posts that were made again: half of them because the first one failed."""
        self._post = post
        self._make = make or _rows
        self._random = random.Random(seed)
        self._prefix = prefix
        self._told = threading.Event()
        self._failure: BaseException | None = None

    def feed(self, batches: int) -> None:
        """Posts so many batches."""
        for _ in range(batches):
            self._feed_one()

    def close_windows(self) -> None:
        """Posts a row from an hour later, whose own window stays open: `posted` has it not."""
        late = (None, None, None, _time_of(self.batches) + timedelta(hours=1))
        assert self._post(f"{self._prefix}-close", _ndjson([late]))

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Posts all the time inside. Raises what ended the posts before their time."""
        self._told.clear()
        thread = threading.Thread(target=self._feed_on, name="feeder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._told.set()
            thread.join(120)
        if self._failure is not None:
            raise self._failure
        assert not thread.is_alive(), "the last post does not end"

    def _feed_on(self) -> None:
        try:
            while not self._told.wait(_BREATH_SECONDS):
                self._feed_one()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self._failure = error

    def _feed_one(self) -> None:
        rows = self._make(self._random, _time_of(self.batches))
        body = _ndjson(rows)
        name = f"{self._prefix}-{self.batches:06}"
        while not self._post(name, body):
            self.repeats += 1
            # The service is just being started again.
            self._told.wait(_BREATH_SECONDS)
        self.posted.rows.extend(rows)
        self.batches += 1
        if self._random.random() < _REPEATED and self._post(name, body):
            self.repeats += 1


def over_http(client: JobClient, stream: str) -> Post:
    """Posts to an API, which may go away."""

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
    """Declares a stream of `DDL`."""
    answer = client.http.put(f"/v1/streams/{stream}", json={"schema": DDL})
    assert answer.is_success, answer.text


def within(database: Database, settings: Settings, tenant: str, stream: str) -> Post:
    """Declares a stream of `DDL`, and posts as the API does, without one."""
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
    """Rows of a result, for comparison; AssertionError where a group comes twice."""
    listed = [tuple(row) for row in rows]
    found = {(k, n, s, d) for k, n, s, d in listed}
    assert len({k for k, *_ in listed}) == len(listed), f"a group comes twice: {listed}"
    return found


def _rows(random_: random.Random, begin: datetime) -> list[Row]:
    """Most of one key; some without a key or values, and values that come again and again, near and far apart."""
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
    """No row of a batch is older than one of a batch before it."""
    return _BEGIN + timedelta(seconds=_BATCH_SECONDS * batch)


def _by(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    found: dict[K, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _distinct(rows: Iterable[Row]) -> int:
    return len({y for _, _, y, _ in rows if y is not None})


def _ndjson(rows: Iterable[Row]) -> bytes:
    lines = (json.dumps({"k": k, "x": x, "y": y, "at": at.isoformat()}) for k, x, y, at in rows)
    return "".join(f"{line}\n" for line in lines).encode()
