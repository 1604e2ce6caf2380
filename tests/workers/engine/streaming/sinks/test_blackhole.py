"""The sink that only counts."""

from __future__ import annotations

from workers.engine.streaming.sinks.blackhole import BlackholeSink
from workers.engine.streaming.sinks.sink import Sink, Staged


def test_it_counts_each_mini_batch_once() -> None:
    black = BlackholeSink()
    sink: Sink = black
    sink.prepare()
    assert sink.committed() is None
    for batch_id in (0, 1, 1, 0):
        assert sink.commit(batch_id, Staged((), 10, 100)) is None
    sink.tidy()
    sink.close()
    assert (sink.committed(), black.rows, black.bytes, black.batches) == (1, 20, 200, 2)
