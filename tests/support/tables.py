"""Writes small tables with known results, and finds the files of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.files import TableFiles, find_table_files
from service.data.roots import Root
from service.data.table_resolution import Resolved, resolve_table

ORDERS = 10_000
FILES = 4


def write_orders(root: Path) -> None:
    """Writes `orders/` (10,000 rows in 4 Parquet files) and `users/` (100 rows, CSV with a header) below `root`.

    Order i: uid = i mod 100 (NULL where i mod 1000 = 999), category = "c" + i mod 7, price = i, half of them cents.
    """
    directory = root / "orders"
    directory.mkdir()
    for part in range(FILES):
        numbers = range(part * ORDERS // FILES, (part + 1) * ORDERS // FILES)
        table = pa.table(
            {
                "uid": pa.array([None if i % 1000 == 999 else i % 100 for i in numbers], pa.int64()),
                "category": pa.array([f"c{i % 7}" for i in numbers], pa.string()),
                "price": pa.array([float(i) / 2 for i in numbers], pa.float64()),
            }
        )
        pq.write_table(table, directory / f"part-{part}.parquet")
    users = root / "users"
    users.mkdir()
    lines = ["uid,name", *(f"{uid},user {uid}" for uid in range(100))]
    (users / "users.csv").write_text("\n".join(lines) + "\n")


def write_endless(root: Path) -> None:
    """Writes `one_key/`: 400,000 rows of one key. A self-join has more pairs than any machine counts during a test.

    It is CSV because a task that reads CSV checks for cancellation before every row, and one that reads Parquet before
    every batch. With Parquet, a cancelled task kept its slot for half a minute.
    """
    directory = root / "one_key"
    directory.mkdir()
    (directory / "part.csv").write_text("".join(f"1,{v}\n" for v in range(400_000)))


def write_hot(root: Path, name: str) -> None:
    """Writes `name/`: 60,000 rows in 4 Parquet files, two thirds of them with the key 7, in 20 groups."""
    directory = root / name
    directory.mkdir()
    numbers = range(60_000)
    table = pa.table({"k": [7 if one % 3 else one for one in numbers], "g": [one % 20 for one in numbers]})
    for part in range(FILES):
        pq.write_table(table.slice(part * 15_000, 15_000), directory / f"{part}.parquet")


def parquet(name: str) -> dict[str, str]:
    """Returns a Parquet table for the body of a job."""
    return {"format": "parquet", "path": f"{name}/"}


USERS = {"format": "csv", "path": "users/", "schema": "uid BIGINT, name STRING", "options": {"header": True}}

ONE_KEY = {"format": "csv", "path": "one_key/", "schema": "k BIGINT, v BIGINT"}

ENDLESS = {
    "name": "endless",
    "tables": {"a": ONE_KEY, "b": ONE_KEY},
    "sql": "SELECT COUNT(*) AS n, SUM(a.v + b.v) AS s FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1",
}
"""A job that runs until it is stopped."""


def on_disk(files: TableFiles) -> list[Path]:
    """Returns the local files of a table."""
    return [file for file in files.files if isinstance(file, Path)]


def find(path: str, *roots: Root) -> TableFiles:
    """Returns the files of a table `t` with this path. Raises SpecError."""
    return find_table_files("t", TableSource.model_validate({"format": "parquet", "path": path}), roots)


def refusal(path: str, *roots: Root) -> SpecError:
    """Returns the error that refuses such a table."""
    with pytest.raises(SpecError) as caught:
        find(path, *roots)
    assert caught.value.issues[0].pointer == "/tables/t/path"
    return caught.value


def resolved(root: Path, path: str = "t", *, is_stream: bool = False, **table: Any) -> Resolved:
    """Returns a table below `root`, as the service resolves it."""
    source = TableSource.model_validate({"path": path, **table})
    return resolve_table("t", source, (root,), is_stream=is_stream)


def refused(root: Path, path: str = "t", *, is_stream: bool = False, **table: Any) -> tuple[str, str]:
    """Returns code and text of the error with which a table is refused."""
    with pytest.raises(SpecError) as caught:
        resolved(root, path, is_stream=is_stream, **table)
    return caught.value.code, caught.value.issues[0].detail


def write_file(root: Path, name: str, data: bytes) -> None:
    """Writes a file of the table `t`."""
    (root / "t").mkdir(exist_ok=True)
    (root / "t" / name).write_bytes(data)
