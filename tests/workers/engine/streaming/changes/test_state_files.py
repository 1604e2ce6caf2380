"""Tests of the state of changes: what a mini-batch reads and writes, also if it runs again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from workers.engine.streaming.changes import state_files, state_tasks
from workers.engine.streaming.changes.state_files import (
    KEY,
    WEIGHT,
    SortedRows,
    StaleStateError,
    StateLockedError,
    UnknownStateError,
    consolidated,
    locked,
    merged,
    read_manifest,
    sorted_rows,
    undo,
)
from workers.engine.streaming.changes.state_tasks import BUCKET, PORT, StateTask, TooManyRowsError, value_of

pytestmark = pytest.mark.quick

Change = tuple[int, int, str, int]
"""The input, the key, the row and the weight of a change."""


def batch(changes: list[Change], ports: int = 1) -> pa.RecordBatch:
    rows = {
        value_of(place, number): pa.array([row[number] if port == place else None for port, *row, _ in changes], kind)
        for place in range(ports)
        for number, kind in ((0, pa.int64()), (1, pa.string()))
    }
    columns = {
        PORT: pa.array([port for port, *_ in changes], pa.int32()),
        BUCKET: pa.array([0] * len(changes), pa.int32()),
        KEY: pa.array([key for _, key, _, _ in changes], pa.int64()),
        **rows,
        WEIGHT: pa.array([weight for *_, weight in changes], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def run(directory: Path, number: int, changes: list[Change], **task: Any) -> Counter[tuple[int, int, str]]:
    """Runs a mini-batch. Returns the rows of the state before it, with their numbers."""
    settings = {"fence": 1, "fetched": ((0,),), "applied": frozenset({0}), **task}
    widths = (2,) * len(settings["fetched"])
    work = StateTask(directory=str(directory), batch_id=number, widths=widths, **settings)
    found: Counter[tuple[int, int, str]] = Counter()
    pieces = [batch(changes[:2], work.ports), batch(changes[2:], work.ports)]
    for returned in work(iter(pieces)):
        for row in returned.to_pylist():
            key, value = (row[value_of(row[PORT], place)] for place in (0, 1))
            found[row[PORT], key, value] += row[WEIGHT]
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
    undo(tmp_path, 1, 2, 2, 1)
    undo(tmp_path, 1, 3, 2, 1)
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


Row = tuple[int, int, int]
"""The key, the value and the weight of a row."""


def rows_of(rows: list[Row]) -> SortedRows:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    names = (KEY, "value", WEIGHT)
    return sorted_rows(pa.table({name: pa.array(own, pa.int64()) for name, own in zip(names, columns, strict=True)}))


def weights(batches: Iterable[pa.RecordBatch]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        for row in batch.to_pylist():
            found[row[KEY], row["value"]] += row[WEIGHT]
    return found


def test_files_are_merged_and_removed_rows_left_out(tmp_path: Path) -> None:
    random = Random(29)
    expected: Counter[tuple[int, int]] = Counter()
    for number in range(200):
        change = [(random.randint(0, 9), random.randint(0, 3), 1) for _ in range(random.randint(1, 20))]
        change += [(*row, -1) for row, weight in expected.items() if weight > 0 and random.random() < 0.2]
        with locked(tmp_path) as bucket:
            bucket.begin(number, 1, {0})
            assert +weights(batch for rows in bucket.before(0) for batch in rows.batches) == +expected
            bucket.add(0, rows_of(change))
            bucket.commit()
        for key, value, weight in change:
            expected[key, value] += weight
    files = read_manifest(tmp_path).files
    assert len(files) < 12
    assert {file.name for file in files} == {path.name for path in tmp_path.glob("*.arrow")}
    # 40 rows are possible, and each mini-batch had 10 changes.
    assert sum(file.rows for file in files) < 300


def test_all_rows_of_a_hash_are_merged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "_BATCH_ROWS", 3)
    random = Random(30)
    parts = [
        rows_of([(random.choice((1, 1, 1, 2, 9)), random.randint(0, 2), random.choice((1, -1))) for _ in range(50)])
        for _ in range(4)
    ]
    pieces = list(merged(parts))
    keys = [key for piece in pieces for own in piece.keys for key in own.tolist()]
    assert keys == sorted(keys)
    everything = weights(batch for part in parts for batch in part.batches)
    nonzero = {row: weight for row, weight in everything.items() if weight}
    assert weights(batch for piece in pieces for batch in piece.batches) == nonzero
    assert sum(piece.rows for piece in pieces) == len(nonzero)


def test_a_task_that_ended_before_its_commit_has_no_effect(tmp_path: Path) -> None:
    run(tmp_path, 0, [(0, 1, "a", 1)])
    with locked(tmp_path / "0") as bucket:
        bucket.begin(1, 1, {0})
        bucket.add(0, rows_of([(1, 1, 1)]))
    assert run(tmp_path, 1, [(0, 1, "b", 1)]) == {(0, 1, "a"): 1}
    assert len(list((tmp_path / "0").glob("*.arrow"))) == 2


def test_rows_of_mini_batches_with_and_without_nulls_are_merged(tmp_path: Path) -> None:
    for number in range(10):
        may_be_null = number % 2 == 0
        value = pa.field("x", pa.int32(), nullable=may_be_null)
        kinds = (
            pa.struct([value]),
            pa.list_(value.with_name("element")),
            pa.map_(pa.string(), value.with_name("value")),
        )
        values = ([{"x": number}], [[number]], [[("a", number)]])
        names = [value_of(0, place) for place in range(3)]
        columns = {PORT: [0], BUCKET: [0], KEY: [1], **dict(zip(names, values, strict=True)), WEIGHT: [1]}
        own = zip(names, kinds, strict=True)
        schema = pa.schema(
            [
                (PORT, pa.int32()),
                (BUCKET, pa.int32()),
                (KEY, pa.int64()),
                *(pa.field(name, kind, nullable=may_be_null) for name, kind in own),
                pa.field(WEIGHT, pa.int64(), nullable=False),
            ]
        )
        rows = pa.RecordBatch.from_pydict(columns, schema)
        task = StateTask(str(tmp_path), number, 1, (3,), ((0,),), frozenset({0}))
        old = [row for returned in task(iter([rows])) for row in returned.to_pylist()]
        assert sorted(row[names[1]][0] for row in old) == list(range(number))


def test_a_second_try_that_dies_leaves_what_the_first_one_has_written(tmp_path: Path) -> None:
    run(tmp_path, 0, [(0, 1, "a", 1)])
    with locked(tmp_path / "0") as bucket:
        bucket.begin(0, 1, {0})
        bucket.add(0, rows_of([(1, 5, 1)]))
    assert run(tmp_path, 1, [(0, 1, "b", 1)]) == {(0, 1, "a"): 1}


def test_files_of_decreasing_size_are_merged(tmp_path: Path) -> None:
    for number in range(60):
        with locked(tmp_path) as bucket:
            bucket.begin(number, 1, {0})
            bucket.add(0, rows_of([(row, number, 1) for row in range(100 - number)]))
            bucket.commit()
    files = read_manifest(tmp_path).files
    assert len(files) < 12
    assert sum(file.rows for file in files) == sum(100 - number for number in range(60))
    assert all(file.bytes == (tmp_path / file.name).stat().st_size for file in files)


def test_changes_that_cancel_out_read_their_key(tmp_path: Path) -> None:
    run(tmp_path, 0, [(0, 1, "a", 1)])
    assert run(tmp_path, 1, [(0, 1, "b", 1), (0, 1, "b", -1)]) == {(0, 1, "a"): 1}


def test_rows_of_one_hash_are_merged_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "_BATCH_ROWS", 10)
    parts = [rows_of([(1, number, 1) for number in range(35)]), rows_of([(1, number, 1) for number in range(25)])]
    pieces = list(merged(parts))
    assert max(piece.rows for piece in pieces) == 10
    assert sum(piece.rows for piece in pieces) == 60


def test_a_locked_bucket_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "_WAIT_SECONDS", 0)
    with locked(tmp_path), pytest.raises(StateLockedError), locked(tmp_path):
        pass


def test_a_state_of_another_format_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 0, [(0, 1, "a", 1)])
    manifest = tmp_path / "0" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(UnknownStateError, match="another version"):
        run(tmp_path, 1, [(0, 1, "a", 1)])
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "0.sqlite").touch()
    with pytest.raises(UnknownStateError, match="SQLite"):
        undo(tmp_path, 1, 1, 1, 1)


@pytest.mark.parametrize("at_once", [4, 65_536])
def test_pairs_of_a_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(state_tasks, "_ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(state_tasks, "_FLUSHED_BYTES", at_once)
    monkeypatch.setattr(state_files, "_BATCH_ROWS", at_once)
    random = Random(31)
    sides: tuple[Counter[tuple[int, str]], Counter[tuple[int, str]]] = (Counter(), Counter())
    expected: Counter[tuple[int, str, int, str]] = Counter()
    for number in range(12):
        changes = [
            (random.randint(0, 1), random.choice((1, 1, 1, 2, 3)), random.choice("abc"), random.choice((1, 2, -1)))
            for _ in range(random.randint(1, 25))
        ]
        task = StateTask(str(tmp_path), number, 1, (2, 2), ((1,), (0,)), frozenset({0, 1}), is_join=True)
        found: Counter[tuple[int, str, int, str]] = Counter()
        for returned in task(iter([batch(changes[:7], 2), batch(changes[7:], 2)])):
            for row in returned.to_pylist():
                left_key, left, right_key, right = (row[value_of(port, place)] for port in (0, 1) for place in (0, 1))
                found[left_key, left, right_key, right] += row[WEIGHT]
        before = Counter(expected)
        for port, key, value, weight in changes:
            sides[port][key, value] += weight
        expected = Counter()
        for (left_key, left), one in sides[0].items():
            for (right_key, right), other in sides[1].items():
                if left_key == right_key:
                    expected[left_key, left, right_key, right] = one * other
        change = {pair: expected[pair] - before[pair] for pair in expected.keys() | before.keys()}
        assert {pair: weight for pair, weight in found.items() if weight} == {p: w for p, w in change.items() if w}


def test_equal_rows_of_all_types_cancel_out() -> None:
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
        "l": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "p": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        "o": pa.array([{"x": [Decimal("1.5")]}, None, {"x": None}], pa.struct([("x", pa.list_(pa.decimal128(3, 1)))])),
    }
    keys = pa.array([1, 1, 1], pa.int64())

    def table(signs: list[int], rows: dict[str, pa.Array]) -> pa.Table:
        return pa.table({KEY: keys, **rows, WEIGHT: pa.array(signs, pa.int64())})

    whole = pa.concat_tables([table([1, 1, 1], columns), table([-1, -1, -1], columns)])
    assert consolidated(whole).num_rows == 0
    zeros = pa.table({KEY: [1, 1], "d": [0.0, -0.0], "l": [[-0.0], [0.0]], WEIGHT: [1, -1]})
    assert consolidated(zeros).num_rows == 0
    # Each column alone distinguishes the rows.
    for name, values in columns.items():
        shifted = pa.concat_arrays([values.slice(1), values.slice(0, 1)])
        both = pa.concat_tables([table([1, 1, 1], {name: values}), table([2, 2, 2], {name: shifted})])
        summed = consolidated(both)
        assert summed.num_rows == 3, name
        assert summed.column(WEIGHT).to_pylist() == [3, 3, 3], name
