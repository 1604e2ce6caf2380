"""Where a job's result goes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from service.spec.model import Frozen
from service.spec.tagged import told_apart_by

_NAME = r"[A-Za-z_][A-Za-z0-9_$]{0,62}"


class ManagedSink(Frozen):
    """The result is kept by the service and read through `GET /v1/jobs/{id}/result`. Exactly once."""

    kind: Literal["managed"]


class PostgresSink(Frozen):
    """A table of a PostgreSQL database, one row for each group. Streaming modes. Exactly once."""

    kind: Literal["postgres"]
    connection: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,62}$",
        description="Name of a connection that the operator has set up: `EVENKEEL_SINK_<NAME>_URL`.",
        examples=["warehouse"],
    )
    table: str = Field(
        pattern=rf"^({_NAME}\.)?{_NAME}$",
        description="The table, with its schema where that is not the connection's own. Made where there is none.",
        examples=["public.uniques"],
    )

    @field_validator("table")
    @classmethod
    def _is_none_of_ours(cls, table: str) -> str:
        name = table.rpartition(".")[2].casefold()
        if name == "evenkeel_batches" or name.endswith("__parts"):
            raise PydanticCustomError(
                "reserved_table", "'evenkeel_batches' and names that end in '__parts' are kept for the service."
            )
        return table


class DeltaSink(Frozen):
    """A Delta table, one row for each group. Streaming modes. Exactly once."""

    kind: Literal["delta"]
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Directory of the table, relative to a root that jobs may write to, or absolute inside one.",
        examples=["out/uniques"],
    )


class ParquetSink(Frozen):
    """Parquet files, which only grow in number: for results whose rows never change. Streaming modes. Exactly once."""

    kind: Literal["parquet"]
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Directory of the files, relative to a root that jobs may write to, or absolute inside one.",
        examples=["out/windows"],
    )


Sink = Annotated[
    ManagedSink | PostgresSink | DeltaSink | ParquetSink,
    told_apart_by(
        "kind", {"managed": ManagedSink, "postgres": PostgresSink, "delta": DeltaSink, "parquet": ParquetSink}
    ),
]
