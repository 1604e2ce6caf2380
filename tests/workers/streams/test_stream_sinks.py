"""Which sink a job gets, and where it may write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.contract.job import JobSpec
from service.sql.types.data_types import BIGINT, STRING, Field
from workers.engine.streaming.sinks.append import AppendingSink
from workers.engine.streaming.sinks.base import Sink, SinkError, SinkTarget
from workers.engine.streaming.sinks.delta import DeltaSink
from workers.engine.streaming.sinks.managed import ManagedSink
from workers.engine.streaming.sinks.postgres import PostgresSink
from workers.streams.runner import make_sink

COLUMNS = (Field("k", STRING), Field("n", BIGINT))
TARGET = SinkTarget("evenkeel/job/1", 1, COLUMNS, COLUMNS, ("k",))
ENVIRONMENT = {"EVENKEEL_SINK_WAREHOUSE_URL": "postgresql://localhost/warehouse"}


def made(tmp_path: Path, sink: dict[str, Any], *roots: Path) -> Sink:
    spec = JobSpec.model_validate(
        {
            "mode": "incremental",
            "tables": {"t": {"format": "rate"}},
            "sql": "SELECT value, COUNT(*) AS n FROM t GROUP BY value",
            "sink": sink,
        }
    )
    return make_sink(spec, TARGET, tmp_path / "result", roots, None, ENVIRONMENT)


def test_each_kind_has_its_sink(tmp_path: Path) -> None:
    assert isinstance(made(tmp_path, {"kind": "managed"}), ManagedSink)
    postgres = {"kind": "postgres", "connection": "warehouse", "table": "uniques"}
    assert isinstance(made(tmp_path, postgres), PostgresSink)
    assert isinstance(made(tmp_path, {"kind": "delta", "path": "out"}, tmp_path), DeltaSink)
    for kind in ("parquet", "json"):
        assert isinstance(made(tmp_path, {"kind": kind, "path": "out"}, tmp_path), AppendingSink)
    assert list(tmp_path.iterdir()) == [], "nothing is written yet"


def test_a_missing_connection_is_reported_by_its_variable(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="EVENKEEL_SINK_LAKE_URL"):
        made(tmp_path, {"kind": "postgres", "connection": "lake", "table": "uniques"})


def test_without_a_root_no_sink_writes_files(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="EVENKEEL_DATA_SINK_ROOTS"):
        made(tmp_path, {"kind": "delta", "path": "out"})


@pytest.mark.withstands(
    "a sink path outside the sink roots",
    kind="attack",
    how="paths above and next to the sink roots, and through a link",
    times=4,
    guaranteed="it is refused at submission and by the worker; PostgreSQL is reached only by the name of a configured "
    "connection",
)
@pytest.mark.parametrize("path", ["../elsewhere", "/elsewhere", ".", "link/out"])
def test_a_path_outside_the_roots_is_refused(tmp_path: Path, path: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "link").symlink_to(elsewhere)
    with pytest.raises(SinkError, match="is not inside"):
        made(tmp_path, {"kind": "delta", "path": path}, root)


def test_an_absolute_path_inside_any_root_is_accepted(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert isinstance(made(tmp_path, {"kind": "delta", "path": str(second / "out")}, first, second), DeltaSink)
