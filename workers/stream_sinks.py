"""Which sink a job's result goes to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    path = _inside(sink.path, roots)
    return DeltaSink(path, target, of_nothing) if isinstance(sink, DeltaSpec) else AppendingSink(path, target)


def _inside(given: str, roots: Sequence[Path]) -> Path:
    """Where a sink writes: below the first root, or where an absolute path says, inside one. Links are followed."""
    if not roots:
        raise SinkError("No directory is set up that sinks may write to: EVENKEEL_DATA_SINK_ROOTS.")
    for root in roots:
        base = Path(os.path.realpath(root))
        path = Path(os.path.realpath(base / given))
        if path != base and path.is_relative_to(base):
            return path
    raise SinkError(
        f"'{given}' does not lie inside a directory that sinks may write to: those of EVENKEEL_DATA_SINK_ROOTS."
    )
