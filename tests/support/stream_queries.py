"""Queries over three streams, `s`, `t` and `u`, and the static table `n`."""

from __future__ import annotations

from typing import Any

from service.spec.bound import BoundQuery, tables_of
from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.job import JobSpec
from service.spec.types import DOUBLE, INT, DataType, Field, Schema, TypeName
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Node
from workers.engine.plan.stream_shape import StreamPlan, stream_plan

_ATOMIC = (
    "id BIGINT, k STRING, g INT, d DOUBLE, f FLOAT, i INT, y TINYINT, s SMALLINT, b BIGINT, m DECIMAL(10,2), "
    "w DECIMAL(30,5), z DECIMAL(18,8), q BOOLEAN, da DATE, ts TIMESTAMP"
)
_NESTED = (
    Field("a", DataType(TypeName.OTHER, text="ARRAY<DOUBLE>", parts=(DOUBLE,))),
    Field("l", DataType(TypeName.OTHER, text="ARRAY<INT>", parts=(INT,))),
    Field("p", DataType(TypeName.OTHER, text="MAP<STRING, INT>")),
)
STREAMS = frozenset("stu")
SCHEMAS = {
    **{name: Schema((*parse_schema(_ATOMIC, "/").fields, *_NESTED)) for name in sorted(STREAMS)},
    "n": parse_schema("g INT, name STRING, d DOUBLE", "/"),
}


def job(**more: Any) -> JobSpec:
    """An incremental job over the tables, with `sql` or `query` among what it says more."""
    tables = {
        name: {"format": "parquet", "path": name, "role": "stream" if name in STREAMS else "static"} for name in SCHEMAS
    }
    return JobSpec.model_validate({"mode": "incremental", "tables": tables, **more})


def taken(sql: str) -> BoundQuery:
    """A query that some version took."""
    return compile_job(job(sql=sql), SCHEMAS, is_accepted=True)


def built(sql: str) -> tuple[Node, frozenset[str]]:
    """What the planner of streams is given: a plan, and the aliases in it that are streams."""
    query = taken(sql)
    return build(query), frozenset(table.alias for table in tables_of(query) if table.table in STREAMS)


def planned(sql: str) -> StreamPlan:
    """Its plan. Raises StreamPlanError."""
    return stream_plan(*built(sql))
