"""Tests of the state of changes: what a mini-batch reads and writes, also if it runs again."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from workers.engine.streaming.changes.state_files import (
    BUCKET,
    KEY,
    OLD,
    PORT,
    ROW,
    WEIGHT,
    StaleStateError,
    StateTask,
    TooManyRowsError,
    from_values,
    to_values,
    undo,
)

pytestmark = pytest.mark.quick

Change = tuple[int, int, str, int]
"""The input, the key, the row and the weight of a change."""

_ROW = pa.struct([("key", pa.int64()), ("value", pa.string())])


def batch(changes: list[Change], ports: int = 1) -> pa.RecordBatch:
    rows = [
        pa.array([{"key": key, "value": value} if port == place else None for port, key, value, _ in changes], _ROW)
        for place in range(ports)
    ]
    columns = {
        PORT: pa.array([port for port, *_ in changes], pa.int32()),
        BUCKET: pa.array([0] * len(changes), pa.int32()),
        KEY: pa.array([key for _, key, _, _ in changes], pa.int64()),
        **{f"{ROW}{place}": row for place, row in enumerate(rows)},
        WEIGHT: pa.array([weight for *_, weight in changes], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def run(directory: Path, number: int, changes: list[Change], **task: Any) -> Counter[tuple[int, int, str]]:
    """Runs a mini-batch. Returns the rows of the state before it, with their numbers."""
    settings = {"fence": 1, "fetched": ((0,),), "applied": frozenset({0}), **task}
    work = StateTask(directory=str(directory), batch_id=number, **settings)
    found: Counter[tuple[int, int, str]] = Counter()
    pieces = [batch(changes[:2], work.ports), batch(changes[2:], work.ports)]
    for returned in work(iter(pieces)):
        for row in returned.to_pylist():
            if row[OLD]:
                value = row[f"{ROW}{row[PORT]}"]
                found[row[PORT], value["key"], value["value"]] += row[WEIGHT]
    return found


def test_a_mini_batch_reads_the_keys_that_it_changes(tmp_path: Path) -> None:
    assert run(tmp_path, 0, [(0, 1, "a", 1), (0, 1, "b", 2), (0, 2, "c", 1)]) == {}
    assert run(tmp_path, 1, [(0, 1, "a", -1), (0, 3, "d", 1)]) == {(0, 1, "a"): 1, (0, 1, "b"): 2}
    assert run(tmp_path, 2, [(0, 1, "b", 1), (0, 2, "c", -1)]) == {(0, 1, "b"): 2, (0, 2, "c"): 1}
    assert run(tmp_path, 3, [(0, 1, "x", 1), (0, 2, "x", 1)]) == {(0, 1, "b"): 3}


def test_a_repeated_mini_batch_finds_the_state_before_it(tmp_path: Path) -> None:
    run(tmp_path, 0, [(0, 1, "a", 1)])
    first = run(tmp_path, 1, [(0, 1, "a", -1), (0, 1, "b", 5)])
    assert run(tmp_path, 1, [(0, 1, "a", -1), (0, 1, "b", 5)], fence=2) == first == {(0, 1, "a"): 1}
    assert run(tmp_path, 2, [(0, 1, "c", 1)], fence=2) == {(0, 1, "b"): 5}


def test_an_attempt_first_undoes_the_mini_batch_everywhere(tmp_path: Path) -> None:
    first, second = tmp_path / "0", tmp_path / "1"
    for directory in (first, second):
        run(directory, 0, [(0, 1, "a", 1)])
        run(directory, 1, [(0, 1, "b", 1)])
    undo(tmp_path, 1, 2)
    undo(tmp_path, 1, 3)
    # Its repetition has other changes, and none in the second directory.
    assert run(first, 1, [(0, 1, "c", 1)], fence=3) == {(0, 1, "a"): 1}
    assert run(first, 2, [(0, 1, "d", 1)], fence=3) == {(0, 1, "a"): 1, (0, 1, "c"): 1}
    assert run(second, 2, [(0, 1, "d", 1)], fence=3) == {(0, 1, "a"): 1}
    with pytest.raises(StaleStateError):
        run(second, 3, [(0, 1, "e", 1)], fence=2)


def test_a_task_that_would_read_too_much_writes_nothing(tmp_path: Path) -> None:
    run(tmp_path, 0, [(0, 1, "a", 1), (0, 1, "b", 1)])
    with pytest.raises(TooManyRowsError):
        run(tmp_path, 1, [(0, 1, "c", 1)], most_rows=1)
    assert run(tmp_path, 1, [(0, 1, "c", 1)], most_rows=2) == {(0, 1, "a"): 1, (0, 1, "b"): 1}


def test_each_side_of_a_join_reads_the_other_one(tmp_path: Path) -> None:
    join = {"fetched": ((1,), (0,)), "applied": frozenset({0, 1})}
    assert run(tmp_path, 0, [(0, 1, "l", 1), (1, 1, "r", 1), (0, 2, "l", 1)], **join) == {}
    assert run(tmp_path, 1, [(0, 1, "m", 1), (1, 2, "s", 1)], **join) == {(1, 1, "r"): 1, (0, 2, "l"): 1}


@pytest.mark.parametrize(("number", "fence"), [(0, 2), (2, 1)])
def test_an_older_attempt_and_an_earlier_mini_batch_are_refused(tmp_path: Path, number: int, fence: int) -> None:
    run(tmp_path, 1, [(0, 1, "a", 1)], fence=2)
    with pytest.raises(StaleStateError):
        run(tmp_path, number, [(0, 1, "b", 1)], fence=fence)
    assert run(tmp_path, 3, [(0, 1, "b", 1)], fence=3) == {(0, 1, "a"): 1}


def test_random_mini_batches_with_interruptions(tmp_path: Path) -> None:
    random = Random(28)
    expected: Counter[tuple[int, int, str]] = Counter()
    for number in range(40):
        rows = {(random.randint(0, 5), random.choice("ab")) for _ in range(random.randint(1, 8))}
        changes = [(0, key, value, random.choice((-expected[0, key, value], 1, 2)) or 1) for key, value in sorted(rows)]
        keys = {key for _, key, _, _ in changes}
        before = {row: weight for row, weight in expected.items() if weight and row[1] in keys}
        for fence in range(random.randint(1, 3)):
            assert run(tmp_path, number, changes, fence=10 * number + fence) == before
        for _, key, value, weight in changes:
            expected[0, key, value] += weight


def _bytes(rows: pa.StructArray) -> list[Any]:
    """Returns the values; texts, which may be invalid, as bytes, so that NaN equals NaN."""
    columns = [one.view(pa.binary()) if pa.types.is_string(one.type) else one for one in rows.flatten()]
    return [column.to_pylist() for column in columns]


def test_values_are_stored_exactly() -> None:
    columns = {
        "b": pa.array([True, None, False], pa.bool_()),
        "i": pa.array([-(1 << 63), None, 7], pa.int64()),
        "f": pa.array([0.1, math.inf, None], pa.float32()),
        "d": pa.array([math.nan, -0.0, 1e308], pa.float64()),
        "m": pa.array([Decimal("-0.00000001"), None, Decimal("99999999999999999999.99999999")], pa.decimal128(38, 8)),
        "s": pa.array(["", None, "ä\x00🙂"], pa.string()),
        "x": pa.array([b"\xff\xfe", None, b"ok"], pa.binary()).view(pa.string()),
        "y": pa.array([b"", None, b"\xff\x00"], pa.binary()),
        "day": pa.array([date(1, 1, 1), None, date(9999, 12, 31)], pa.date32()),
        "t": pa.array(
            [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")
        ),
        "n": pa.array([1_700_000_000_000_001, None, -1], pa.int64()).cast(pa.timestamp("us")),
        "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "p": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        "o": pa.array([{"x": [Decimal("1.5")]}, None, {"x": None}], pa.struct([("x", pa.list_(pa.decimal128(3, 1)))])),
    }
    whole = pa.RecordBatch.from_pydict(columns).to_struct_array()
    for rows in (whole, whole.slice(1), whole.slice(0, 0)):
        made = from_values(to_values(rows), rows.type)
        assert made.equals(rows) or repr(_bytes(made)) == repr(_bytes(rows))
