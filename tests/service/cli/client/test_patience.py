"""Tries are bounded, and as far apart as the service asks."""

from __future__ import annotations

from service.cli.client.patience import Patience, seconds_asked
from tests.support.clocks import ManualSeconds


def test_pauses_double_until_the_time_is_over() -> None:
    clock = ManualSeconds()
    patience, pauses = Patience(3, clock), []
    while (pause := patience.pause()) is not None:
        pauses.append(pause)
        clock.now += pause
    assert pauses == [0.2, 0.4, 0.8, 1.6]


def test_what_the_service_asks_for_is_waited_or_not_at_all() -> None:
    patience = Patience(3, ManualSeconds())
    assert patience.pause(2) == 2
    assert patience.pause(60) is None
    assert Patience(0, ManualSeconds()).pause() is None


def test_only_seconds_are_understood() -> None:
    assert seconds_asked("7") == 7
    assert [seconds_asked(text) for text in (None, "", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "9999999")] == [None] * 5
