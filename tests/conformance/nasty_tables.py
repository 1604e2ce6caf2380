"""Small deterministic tables with values that break naive rewrites.

f   a hundred rows, some with NULL keys; NaN, both zeros, infinities, accents and case, smallest and largest BIGINT
h   skewed: most rows have one key, many have none
u   the table to join with f and h: several rows per key, keys without partners, NULL keys
e   no rows;  o  one row
n   lists and structures
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.contract.read_options import ReadOptions, TableFormat
from service.contract.tables import TableSource

SEED = 20_130_101
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

FACTS = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.string()),
        ("g", pa.int32()),
        ("x", pa.float64()),
        ("r", pa.float32()),
        ("b", pa.int64()),
        ("big", pa.int64()),
        ("y", pa.int8()),
        ("s", pa.int16()),
        ("m", pa.decimal128(10, 2)),
        ("w", pa.decimal128(38, 2)),
        ("q", pa.bool_()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
SIDE = pa.schema(
    [
        ("g", pa.int32()),
        ("k", pa.string()),
        ("name", pa.string()),
        ("x", pa.float64()),
        ("v", pa.int64()),
        ("m", pa.decimal128(12, 4)),
        ("d", pa.date32()),
    ]
)
NESTED = pa.schema(
    [("g", pa.int32()), ("a", pa.list_(pa.int32())), ("st", pa.struct([("p", pa.int32()), ("t", pa.string())]))]
)
SCHEMAS = {"f": FACTS, "h": FACTS, "u": SIDE, "e": FACTS, "o": FACTS, "n": NESTED}
AS_PARQUET = {name: TableSource(format=TableFormat.PARQUET, path=name) for name in SCHEMAS}

KEYS = ["a", "A", "ä", "é", "", "c d", "'`", None]
DOUBLES = [0.0, -0.0, math.nan, math.inf, 1.5, -2.25, 0.1, None]
LONGS = [LONG_MIN, LONG_MAX, 0, -1, 1, 2**31, 2**32, -(2**40), None]
NARROW = Decimal("99999999.99")
WIDE = Decimal(10) ** 34

Row = tuple[Any, ...]


def fact(number: int, random: Random, hot: float) -> Row:
    """Returns a row of `f`; with probability `hot`, its key is ('a', 1)."""

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.15 else value

    is_hot = random.random() < hot
    return (
        number,
        "a" if is_hot else random.choice(KEYS),
        1 if is_hot else maybe(random.randint(-2, 6)),
        random.choice(DOUBLES),
        maybe(random.choice([0.0, -0.0, 0.5, -1.25, math.nan])),
        maybe(random.choice([0, 1, -1, 2**40, random.randint(-9, 9)])),
        random.choice([*LONGS, random.randint(LONG_MIN, LONG_MAX)]),
        maybe(random.randint(-128, 127)),
        maybe(random.randint(-3, 3)),
        maybe(random.choice([NARROW, -NARROW, Decimal(random.randint(-999, 999)) / 100])),
        maybe(random.choice([WIDE, -WIDE, Decimal("0.01")])),
        maybe(random.random() < 0.5),
        maybe(random.choice([date(1, 1, 1), date(9999, 12, 31), date(2013, 1, random.randint(1, 28))])),
        maybe(datetime(2013, 1, random.randint(1, 3), 12, 30, 0, random.randint(0, 2), tzinfo=UTC)),
    )


def facts(rows: int, hot: float, seed: int) -> list[Row]:
    """Returns `rows` rows of `f`."""
    random = Random(seed)
    return [fact(number, random, hot) for number in range(rows)]


SIDES: list[Row] = [
    (None, None, "nobody", 0.0, 1, None, None),
    (None, "a", "no g", -0.0, 2, Decimal("0.5"), date(2013, 1, 1)),
    (1, "a", "one", -0.0, 3, Decimal("1.5"), date(2013, 1, 1)),
    (1, "A", "uno", math.nan, None, Decimal("-0.07"), date(1, 1, 1)),
    (1, "ä", "één", 1.5, -7, Decimal("1.5"), None),
    (2, "a", "two", None, 2**33, Decimal(0), date(2013, 1, 2)),
    (2, "", "dos", 0.1, 5, None, date(2013, 1, 2)),
    (-1, "é", "", 1.5, 8, Decimal("9.9900"), date(9999, 12, 31)),
    (3, None, "three", math.inf, 0, Decimal("99999999.9999"), date(2013, 1, 3)),
    (9, "nowhere", None, math.inf, 13, None, date(2013, 2, 1)),
]

NESTEDS: list[Row] = [
    (group, items, struct)
    for group in (1, 2, None)
    for items, struct in [
        ([1, 2], {"p": 1, "t": "x"}),
        ([2, 1], {"p": 1, "t": None}),
        ([], {"p": None, "t": None}),
        ([None], {"p": 1, "t": "x"}),
        (None, None),
        ([1, 2], {"p": 1, "t": "x"}),
    ]
]


def contents() -> dict[str, list[Row]]:
    """Returns the rows of every table."""
    rows = {"f": facts(110, 0.0, SEED), "h": facts(160, 0.6, SEED + 1), "u": SIDES, "e": [], "n": NESTEDS}
    return {**rows, "o": rows["f"][:1]}


def write(root: Path, name: str, rows: list[Row], schema: pa.Schema, files: int = 2) -> None:
    """Writes a table as `files` Parquet files below `root`."""
    directory = root / name
    directory.mkdir()
    columns: Mapping[str, list[Any]] = {field.name: [row[place] for row in rows] for place, field in enumerate(schema)}
    table = pa.table(columns, schema=schema)
    step = -(-len(rows) // files) or 1
    for number in range(files):
        pq.write_table(table.slice(number * step, step), directory / f"part-{number}.parquet")


def write_all(root: Path) -> Path:
    """Writes every table as Parquet files below `root`, and returns `root`."""
    for name, rows in contents().items():
        write(root, name, rows, SCHEMAS[name])
    return root


_DDL = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}
_DIALECTS = {
    "u": ReadOptions(header=True, delimiter=";", quote="'", null_value="NULL"),
    "h": ReadOptions(null_value="\\N"),
}
"""Formats of tables that are not written with a header and an empty field for NULL."""


def _ddl(type_: pa.DataType) -> str:
    return f"DECIMAL({type_.precision},{type_.scale})" if pa.types.is_decimal(type_) else _DDL[type_]


def as_csv(name: str) -> TableSource:
    """Returns the source of a table that `write_csv` wrote."""
    declared = ", ".join(f"{column.name} {_ddl(column.type)}" for column in SCHEMAS[name])
    options = _DIALECTS.get(name, ReadOptions(header=True))
    return TableSource.model_validate({"format": "csv", "path": name, "schema": declared, "options": options})


def _in_text(value: Any, null: str) -> str:
    if value is None:
        return null
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and math.isinf(value):
        return "Inf"
    return "NaN" if isinstance(value, float) and math.isnan(value) else str(value)


def write_csv(root: Path, name: str, rows: list[Row], files: int = 2) -> None:
    """Writes a table as `files` CSV files below `root`. In most formats, an empty string is written like NULL."""
    directory = root / name
    directory.mkdir()
    options = as_csv(name).options
    step = -(-len(rows) // files) or 1
    for number in range(files):
        with (directory / f"part-{number}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter=options.delimiter, quotechar=options.quote, lineterminator="\n")
            if options.header:
                writer.writerow(SCHEMAS[name].names)
            for row in rows[number * step : (number + 1) * step]:
                writer.writerow([_in_text(value, options.null_value) for value in row])
