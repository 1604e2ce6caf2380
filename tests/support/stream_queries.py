"""Queries over three streams, `s`, `t` and `u`, and the static table `n`."""

from __future__ import annotations

from typing import Any

from service.contract.enums import OutputMode
from service.contract.job import JobSpec
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.resolve.bound import BoundQuery, tables_of
from service.sql.types.data_types import DOUBLE, INT, STRING, Field, Schema, array, mapping
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Node
from workers.engine.streaming.stream_plan import StreamPlan, stream_plan

_ATOMIC = (
    "id BIGINT, k STRING, g INT, d DOUBLE, f FLOAT, i INT, y TINYINT, s SMALLINT, b BIGINT, m DECIMAL(10,2), "
    "w DECIMAL(30,5), z DECIMAL(18,8), q BOOLEAN, da DATE, ts TIMESTAMP"
)
_NESTED = (
    Field("a", array(DOUBLE)),
    Field("l", array(INT)),
    Field("p", mapping(STRING, INT)),
)
STREAMS = frozenset("stu")
SCHEMAS = {
    **{name: Schema((*parse_schema(_ATOMIC, "/").fields, *_NESTED)) for name in sorted(STREAMS)},
    "n": parse_schema("g INT, name STRING, d DOUBLE", "/"),
}


TIMED = frozenset("st")
"""Tables that declare an event time in timed jobs."""


def job(*, timed: bool = False, **more: Any) -> JobSpec:
    """Returns an incremental job over the tables, with `more` fields such as `sql` or `query`. If `timed`, `s` and `t`
    have the event time `ts`.
    """
    tables: dict[str, dict[str, Any]] = {
        name: {"format": "parquet", "path": name, "role": "stream" if name in STREAMS else "static"} for name in SCHEMAS
    }
    for name in TIMED if timed else ():
        tables[name]["event_time"] = {"column": "ts", "delay": "5m"}
    return JobSpec.model_validate({"mode": "incremental", "tables": tables, **more})


def taken(sql: str, *, timed: bool = False) -> BoundQuery:
    """Returns a query that some version accepted, without the checks of the current version."""
    return compile_job(job(sql=sql, timed=timed), SCHEMAS, is_accepted=True)


def built(sql: str, *, timed: bool = False) -> tuple[Node, frozenset[str]]:
    """Returns the input of the streaming planner: a plan and the aliases of its streams."""
    query = taken(sql, timed=timed)
    return build(query), frozenset(table.alias for table in tables_of(query) if table.table in STREAMS)


def planned(sql: str, output: OutputMode | None = None, *, timed: bool = False) -> StreamPlan:
    """Returns the plan of a streaming query. Raises StreamPlanError."""
    return stream_plan(*built(sql, timed=timed), output=output)
