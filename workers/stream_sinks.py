"""Which sink a job's result goes to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.datasets.sink_paths import find_sink_directory, outside
from service.spec.job import JobSpec
from service.spec.sinks import DeltaSink as DeltaSpec
from service.spec.sinks import ManagedSink as ManagedSpec
from service.spec.sinks import PostgresSink as PostgresSpec
from workers.engine.streaming.sinks.appending import AppendingSink
from workers.engine.streaming.sinks.delta import DeltaSink
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.engine.streaming.sinks.postgres import PostgresSink
from workers.engine.streaming.sinks.sink import OfNothing, Sink, SinkError, SinkTarget

_URL = "EVENKEEL_SINK_{}_URL"


def make_sink(
    spec: JobSpec,
    target: SinkTarget,
    result: Path,
    roots: Sequence[Path],
    of_nothing: OfNothing | None,
    environment: Mapping[str, str] = os.environ,
) -> Sink:
    """The sink that `spec` names; `result` is where a managed one is kept, `roots` are where others may write. Nothing
    is written yet.

    Raises SinkError for a connection that is not set up, and a path outside the roots.
    """
    sink = spec.sink
    if isinstance(sink, ManagedSpec):
        return ManagedSink(result, target, of_nothing)
    if isinstance(sink, PostgresSpec):
        name = _URL.format(sink.connection.upper())
        url = environment.get(name)
        if not url:
            raise SinkError(f"The connection '{sink.connection}' is not set up: its worker has no {name}.")
        return PostgresSink(url.replace("+psycopg://", "://", 1), sink.table, target, of_nothing)
    if not roots:
        raise SinkError("No directory is set up that sinks may write to: EVENKEEL_DATA_SINK_ROOTS.")
    path = find_sink_directory(sink.path, roots)
    if path is None:
        raise SinkError(outside(sink.path))
    return DeltaSink(path, target, of_nothing) if isinstance(sink, DeltaSpec) else AppendingSink(path, target)
