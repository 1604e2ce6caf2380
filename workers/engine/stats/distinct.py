"""How many distinct values a table has, from a sample of it."""

from __future__ import annotations

from collections.abc import Mapping

ABUNDANT = 50
"""A value seen more often than this in the sample is taken as known and left out of the extrapolation."""


def estimate_distinct(frequencies: Mapping[int, int], rows: int) -> int:
    """Distinct values among `rows` rows, from a random sample's frequencies: how many values it has j times, by j.

    Duj2a of Haas, Naughton, Seshadri, Stokes (VLDB 1995) and Haas, Stokes (1998), on Duj1, which PostgreSQL's ANALYZE
    uses: D = n d / (n - f1 + f1 n / N), with n the sampled rows, d the values among them, f1 those seen once and N the
    rows of the table. Values seen more than 50 times are counted as they are and the rest extrapolated by itself: one
    hot key would else hide that all others are nearly unique. Exact where the sample is the table, and where every
    value is unique. Never below what was seen nor above `rows`.

    >>> estimate_distinct({1: 1000}, rows=50_000)
    50000
    >>> estimate_distinct({100: 10}, rows=50_000)
    10
    """
    seen = sum(frequencies.values())
    sampled = sum(times * values for times, values in frequencies.items())
    rare = {times: values for times, values in frequencies.items() if times <= ABUNDANT}
    rare_values = sum(rare.values())
    rare_rows = sum(times * values for times, values in rare.items())
    if not rare_rows or sampled >= rows:
        return min(seen, rows)
    once = rare.get(1, 0)
    # n / N is the same for the rare rows as for all.
    estimate = rare_rows * rare_values / (rare_rows - once + once * sampled / rows)
    return max(seen, min(rows, round(estimate) + seen - rare_values))
