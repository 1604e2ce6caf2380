"""Random histories of every sink that replaces rows, compared with a dict.

Mini-batches come in order, are given again, by the same attempt or a newer one; attempts are replaced and still write;
logs are rewritten in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql

from service.results.stream_result import open_stream_result
from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge, MergedColumn
from service.sql.types.data_types import BIGINT, STRING, Field
from tests.support.staged import staged
from workers.engine.streaming.sinks import managed as compaction
from workers.engine.streaming.sinks.base import FenceLostError, Sink, SinkTarget, Staged
from workers.engine.streaming.sinks.delta import DeltaSink
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.engine.streaming.sinks.postgres import PostgresSink

COLUMNS = (Field("k", STRING), Field("p", BIGINT), Field("n", BIGINT))
FINAL = FinalLevel(
    ("k",),
    ("p",),
    (MergedColumn("n", Merge.SUM),),
    (FinalColumn(Field("k", STRING), "k"), FinalColumn(Field("total", BIGINT), "n", zero=True)),
)

REMOVED = -3
"""The value of `n` that stands for a removed row in the tests with weights."""
WEIGHTED = (*COLUMNS, Field("w", BIGINT))

Row = tuple[str | None, int | None, int | None]
Rows = list[tuple[Any, ...]]

_numbers = itertools.count()


class Place(NamedTuple):
    """A new, empty place for a result: what writes there with a fencing token, and what is read."""

    sink: Callable[[int], Sink]
    rows: Callable[[], Rows]


def target(fence: int, final: FinalLevel | None, *, weighted: bool = False) -> SinkTarget:
    if weighted:
        return SinkTarget("evenkeel/job/1", fence, WEIGHTED, COLUMNS, ("k", "p"), weight="w")
    output = COLUMNS if final is None else tuple(column.field for column in final.output)
    return SinkTarget("evenkeel/job/1", fence, COLUMNS, output, ("k", "p") if final is None else ("k",), final)


def managed(directory: Path, final: FinalLevel | None, *, weighted: bool = False) -> Place:
    path = directory / f"{next(_numbers)}" / "result"

    def rows() -> Rows:
        return [tuple(row.values()) for row in open_stream_result(path).files.page(0, 1000).to_pylist()]

    return Place(lambda fence: ManagedSink(path, target(fence, final, weighted=weighted)), rows)


def delta(directory: Path, *, weighted: bool = False) -> Place:
    path = directory / f"{next(_numbers)}"

    def rows() -> Rows:
        return [tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist()]

    return Place(lambda fence: DeltaSink(path, target(fence, None, weighted=weighted)), rows)


def postgres(url: str, final: FinalLevel | None, *, weighted: bool = False) -> Place:
    table = f"out_{next(_numbers)}"
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS evenkeel_batches")

    def rows() -> Rows:
        with psycopg.connect(url) as connection:
            return connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))).fetchall()

    return Place(lambda fence: PostgresSink(url, table, target(fence, final, weighted=weighted)), rows)


ROWS = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, 0, 1]), st.none() | st.integers(-3, 3)),
    max_size=5,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), ROWS),
        st.tuples(st.just("batch"), ROWS),
        st.tuples(st.just("replay"), ROWS),
        st.tuples(st.just("restart"), st.just([])),
        st.tuples(st.just("late"), ROWS),
        st.tuples(st.just("tidy"), st.just([])),
    ),
    max_size=9,
)


class History:
    """A result that is written to, and the dict that it is to be."""

    def __init__(self, place: Place, directory: Path, final: FinalLevel | None, *, weighted: bool) -> None:
        self._place = place
        self._directory = directory
        self._final = final
        self._weighted = weighted
        self._model: dict[tuple[str | None, int | None], int | None] = {}
        self._next = 0
        self._sinks: list[Sink] = []
        self.restart([])

    def batch(self, rows: list[Row]) -> None:
        self._sinks[-1].commit(self._next, self._staged(rows, files=min(2, len(rows))))
        self._model |= {(k, p): n for k, p, n in rows}
        if self._weighted:
            self._model = {key: n for key, n in self._model.items() if n != REMOVED}
        self._next += 1

    def replay(self, rows: list[Row]) -> None:
        if rows and (last := self._sinks[-1].committed()) is not None:
            self._sinks[-1].commit(last, self._staged(rows))

    def restart(self, rows: list[Row]) -> None:
        self._sinks.append(self._place.sink(len(self._sinks) + 1))
        self._sinks[-1].prepare()

    def late(self, rows: list[Row]) -> None:
        for sink in self._sinks[:-1]:
            for batch_id in (self._next - 1, self._next):
                with pytest.raises(FenceLostError):
                    sink.commit(batch_id, self._staged(rows))

    def tidy(self, rows: list[Row]) -> None:
        self._sinks[-1].tidy()

    def _staged(self, rows: list[Row], files: int = 1) -> Staged:
        if not self._weighted:
            return staged(self._directory, COLUMNS, rows, files=files)
        newest = {(k, p): n for k, p, n in rows}
        changed = [(k, p, n, int(n != REMOVED)) for (k, p), n in newest.items()]
        return staged(self._directory, WEIGHTED, changed, files=min(files, len(changed)) if rows else files)

    def check(self) -> None:
        last = self._sinks[-1].committed()
        assert last is None or last < self._next
        assert sorted(self._place.rows(), key=repr) == sorted(self._expected(), key=repr)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def _expected(self) -> Rows:
        if self._final is None:
            return [(k, p, n) for (k, p), n in self._model.items()]
        groups: dict[str | None, int] = {}
        for (k, _), n in self._model.items():
            groups[k] = groups.get(k, 0) + (n or 0)
        return list(groups.items())


def run(
    place: Place,
    directory: Path,
    steps: list[tuple[str, list[Row]]],
    final: FinalLevel | None = None,
    *,
    weighted: bool = False,
) -> None:
    history = History(place, directory, final, weighted=weighted)
    try:
        for step, rows in steps:
            getattr(history, step)(rows)
            history.check()
    finally:
        history.close()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are rewritten when they have more than three rows or two files."""
    monkeypatch.setattr(compaction, "LEAST_ROWS", 3)
    monkeypatch.setattr(compaction, "LEAST_FILES", 2)


_KINDS = pytest.mark.parametrize(
    ("final", "weighted"), [(None, False), (FINAL, False), (None, True)], ids=["rows", "parts", "weights"]
)


@pytest.mark.not_quick
@pytest.mark.usefixtures("eager")
@_KINDS
@settings(max_examples=15)
@given(steps=STEPS)
def test_managed(
    tmp_path: Path, final: FinalLevel | None, steps: list[tuple[str, list[Row]]], *, weighted: bool
) -> None:
    run(managed(tmp_path, final, weighted=weighted), tmp_path, steps, final, weighted=weighted)


@pytest.mark.not_quick
@pytest.mark.parametrize("weighted", [False, True], ids=["rows", "weights"])
@settings(max_examples=15)
@given(steps=STEPS)
def test_delta(tmp_path: Path, steps: list[tuple[str, list[Row]]], *, weighted: bool) -> None:
    run(delta(tmp_path, weighted=weighted), tmp_path, steps, weighted=weighted)


@_KINDS
@settings(max_examples=15)
@given(steps=STEPS)
def test_postgres(
    postgres_url: str, tmp_path: Path, final: FinalLevel | None, steps: list[tuple[str, list[Row]]], *, weighted: bool
) -> None:
    run(postgres(postgres_url, final, weighted=weighted), tmp_path, steps, final, weighted=weighted)
