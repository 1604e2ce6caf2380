"""A listing that takes too long is left to itself, and keeps nobody else waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from service.data.roots import Listings, OverdueError
from tests.support.processes import wait_for

LONG = 60.0
SHORT = 0.01


@contextmanager
def held() -> Iterator[Event]:
    """An event that is set at the latest when the test ends, so that no thread stays."""
    event = Event()
    try:
        yield event
    finally:
        event.set()


def ended_again(listings: Listings, path: str) -> bool:
    try:
        return listings.within(LONG, path, lambda: True)
    except OverdueError:
        return False


def test_what_a_listing_gives_and_raises() -> None:
    listings = Listings(parallel=1)
    assert listings.within(LONG, "in", lambda: ["a"]) == ["a"]
    for error in (PermissionError("no"), TimeoutError("its own")):

        def refused(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            listings.within(LONG, "in", refused)
        assert caught.value is error
    assert listings.within(LONG, "in", lambda: "its place was given back") == "its place was given back"


def test_an_overdue_directory_is_listed_once_until_it_has_ended() -> None:
    listings = Listings()
    begun: list[str] = []
    with held() as event:

        def slow() -> bool:
            begun.append("in")
            return event.wait(LONG)

        for _ in range(3):
            with pytest.raises(OverdueError):
                listings.within(SHORT, "in", slow)
        wait_for("the listing to begin", lambda: begun)
        assert begun == ["in"]
        assert listings.within(LONG, "other", lambda: "listed") == "listed"
    wait_for("the directory to be free again", lambda: ended_again(listings, "in"))


def test_nothing_is_listed_when_the_time_is_over() -> None:
    begun: list[str] = []
    for seconds in (0.0, -1.0):
        with pytest.raises(OverdueError):
            Listings().within(seconds, "in", lambda: begun.append("in"))
    assert begun == []


def test_no_more_than_so_many_at_once() -> None:
    listings = Listings(parallel=1)
    with held() as event:
        with pytest.raises(OverdueError):
            listings.within(SHORT, "in", lambda: event.wait(LONG))
        with pytest.raises(OverdueError):
            listings.within(SHORT, "other", lambda: True)
    assert listings.within(LONG, "other", lambda: True)
