"""Which sink a job's result goes to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from service.spec.job import JobSpec
from service.spec.sinks import ManagedSink as ManagedSpec
from service.spec.sinks import PostgresSink as PostgresSpec
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.engine.streaming.sinks.sink import Sink, SinkError, SinkTarget

_URL = "EVENKEEL_SINK_{}_URL"


def make_sink(
    spec: JobSpec,
    target: SinkTarget,
    result: Path,
    of_nothing: tuple[bool | int | float | str | None, ...] | None,
    environment: Mapping[str, str] = os.environ,
) -> Sink:
    """The sink that `spec` names; `result` is where a managed one is kept. Nothing is written yet.

    Raises SinkError for a connection that is not set up, and a sink that this release does not have.
    """
    sink = spec.sink
    if isinstance(sink, ManagedSpec):
        return ManagedSink(result, target, of_nothing)
    if isinstance(sink, PostgresSpec):
        name = _URL.format(sink.connection.upper())
        if not environment.get(name):
            raise SinkError(f"The connection '{sink.connection}' is not set up: its worker has no {name}.")
    raise SinkError(f"The sink '{sink.kind}' cannot be written to by this release.")
