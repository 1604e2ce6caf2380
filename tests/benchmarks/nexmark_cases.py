"""The streams of the benchmark Nexmark, and its queries that `streaming.py` measures (`CASES`).

Of 50 events, one is a new person, three are new auctions, and 46 are bids, as in Nexmark's generator. Half of the bids
are for a hot auction, and three of four of a hot bidder; the others are for one of the 1,000 newest. There are 10,000
events a second. The texts of the queries are in `tests/sql/cases/streams/nexmark.test`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.benchmarks.streaming_cases import Case, Columns, Random, Stream
from tests.sql.case_files import named_texts

EVENTS = 2_000_000
_PERSONS, _AUCTIONS, _BIDS = 1, 3, 46
_TOGETHER = _PERSONS + _AUCTIONS + _BIDS
_EVENTS_A_SECOND = 10_000
_OPEN = 1_000
_FIRST = 1_000
_BEGIN_MS = 1_767_225_600_000
"""2026-01-01 00:00:00 UTC."""
_CATEGORIES = 5
_STATES = np.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = np.array(["Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne"])
_NAMES = np.array(["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"])
_CHANNELS = np.array(["Google", "Facebook", "Baidu", "Apple"])


def _text(prefix: str, values: Any) -> Any:
    return np.char.add(prefix, values.astype(str))


def _times(order: Any) -> Any:
    """Returns the time of each event, to milliseconds, as text."""
    at = (_BEGIN_MS + order * 1000 // _EVENTS_A_SECOND).astype("datetime64[ms]")
    return np.char.replace(np.datetime_as_string(at, unit="ms"), "T", " ")


def _persons(random: Random, start: int, count: int) -> Columns:
    number = np.arange(start, start + count)
    place = random.integers(0, len(_STATES), count)
    return {
        "id": _FIRST + number,
        "name": random.choice(_NAMES, count),
        "email": _text("person", number),
        "city": _CITIES[place],
        "state": _STATES[place],
        "ts": _times(number * _TOGETHER),
    }


def _auctions(random: Random, start: int, count: int) -> Columns:
    number = np.arange(start, start + count)
    order = number // _AUCTIONS * _TOGETHER + _PERSONS + number % _AUCTIONS
    newest = order // _TOGETHER
    seller = np.maximum(0, newest - random.integers(0, _OPEN, count))
    return {
        "id": _FIRST + number,
        "item": _text("item ", random.integers(0, 1000, count)),
        "first_bid": random.integers(1, 1000, count),
        "reserve": random.integers(1000, 2000, count),
        "ts": _times(order),
        "expires": _times(order + random.integers(_EVENTS_A_SECOND, 20 * _EVENTS_A_SECOND, count)),
        "seller": _FIRST + seller,
        "category": 10 + random.integers(0, _CATEGORIES, count),
    }


def _bids(random: Random, start: int, count: int) -> Columns:
    number = np.arange(start, start + count)
    order = number // _BIDS * _TOGETHER + _PERSONS + _AUCTIONS + number % _BIDS
    newest = order // _TOGETHER * _AUCTIONS
    bidders = order // _TOGETHER
    auction = np.where(
        random.random(count) < 0.5, newest // 100 * 100, np.maximum(0, newest - random.integers(0, _OPEN, count))
    )
    bidder = np.where(
        random.random(count) < 0.75, bidders // 100 * 100, np.maximum(0, bidders - random.integers(0, _OPEN, count))
    )
    channel = random.integers(0, len(_CHANNELS), count)
    return {
        "auction": _FIRST + auction,
        "bidder": _FIRST + bidder,
        "price": np.exp(random.random(count) * 6 * np.log(10)).astype(np.int64) * 100 // 100,
        "channel": _CHANNELS[channel],
        "url": _text("https://www.nexmark.com/a/b/item.htm?query=1&channel_id=", channel),
        "ts": _times(order),
    }


def _rows(share: int) -> int:
    return EVENTS * share // _TOGETHER


STREAMS: Mapping[str, Stream] = {
    "person": Stream(
        "id BIGINT, name STRING, email STRING, city STRING, state STRING, ts TIMESTAMP(3)", _rows(_PERSONS), _persons
    ),
    "auction": Stream(
        "id BIGINT, item STRING, first_bid BIGINT, reserve BIGINT, ts TIMESTAMP(3), expires TIMESTAMP(3), "
        "seller BIGINT, category BIGINT",
        _rows(_AUCTIONS),
        _auctions,
    ),
    "bid": Stream(
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, ts TIMESTAMP(3)", _rows(_BIDS), _bids
    ),
}

QUERIES: Mapping[str, str] = named_texts("streams/nexmark")

_MEASURED: Mapping[str, tuple[str, float]] = {
    "q5": ("the auctions with the most bids, by sliding window", 1.0),
    "q7": ("the highest bids by window", 1.0),
    "q11": ("bids of a bidder by session", 1.0),
    "q4": ("average of the final prices by category", 1.0),
    "q9": ("winning bids: the first row of a join", 1.0),
    "q15": ("counts and distinct counts by day", 3.0),
    "q16": ("the same by channel and day", 3.0),
    "q17": ("statistics of bids by auction and day", 3.0),
    "q18": ("the last bid of a bidder for an auction", 1.0),
    "q19": ("the ten highest bids of an auction", 1.0),
    "q20": ("bids joined with their auctions", 1.0),
}
"""What is measured against Flink, with the ratio to reach."""


def _streams(sql: str) -> tuple[str, ...]:
    return tuple(name for name in ("bid", "auction", "person") if f"FROM {name}" in sql or f"JOIN {name}" in sql)


CASES = tuple(
    Case(f"nexmark_{name}", f"Nexmark {name}: {about}", target, QUERIES[name], _streams(QUERIES[name]), STREAMS)
    for name, (about, target) in _MEASURED.items()
)
