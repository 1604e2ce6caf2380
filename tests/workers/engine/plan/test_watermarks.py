"""Watermarks over scans, and in joins of streams."""

from __future__ import annotations

from tests.support.stream_queries import built
from workers.engine.plan.builder import without_watermarks
from workers.engine.plan.explain import text_of

NEAR = "JOIN t ON s.k = t.k AND s.ts >= t.ts AND s.ts < t.ts + INTERVAL '90' SECOND"


def lines(sql: str) -> list[str]:
    plan, _ = built(sql, timed=True)
    return text_of(plan).splitlines()


def test_a_join_of_streams_has_watermarks_on_both_sides() -> None:
    assert lines(f"SELECT t.i FROM s {NEAR}") == [
        "Project t.i AS i",
        "  Join INNER ON s.k = t.k AND s.ts >= t.ts AND s.ts < t.ts + INTERVAL '90' SECOND "
        "WITHIN s.ts - t.ts FROM 0s TO 90s",
        "    Watermark s.ts DELAY 5min",
        "      Scan s AS s [s.k, s.ts]",
        "    Watermark t.ts DELAY 5min",
        "      Scan t AS t [t.k, t.i, t.ts]",
    ]


def test_each_scan_has_one_however_many_ask_for_it_and_the_window_says_whose_time_goes_on() -> None:
    for column in ("s.ts", "t.ts"):
        told = lines(f"SELECT COUNT(*) AS n FROM s {NEAR} GROUP BY TUMBLE({column}, INTERVAL '1' HOUR)")
        assert sum(line.strip().startswith("Watermark") for line in told) == 2
        (join,) = (line for line in told if "Join" in line)
        assert join.endswith(f"EVENT TIME {column}")


def test_they_can_be_taken_away() -> None:
    plan, _ = built(f"SELECT t.i FROM s {NEAR}", timed=True)
    bare, _ = built(f"SELECT t.i FROM s {NEAR}")
    assert plan != bare
    assert without_watermarks(plan) == bare
