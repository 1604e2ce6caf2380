"""Streams of posted rows as clients see them, and how the other use cases look one up."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import Field
from sqlalchemy.orm import Session

from service.errors import StreamNotFoundError
from service.jobs.views import timestamp
from service.spec.model import Frozen
from service.store import ingest
from service.store.ingest import InputStream


class Stream(Frozen):
    """A stream as declared, and what was posted to it so far."""

    name: str = Field(examples=["clicks"])
    declared_schema: str = Field(
        alias="schema", description="Its columns as DDL.", examples=["uid BIGINT, page STRING, at TIMESTAMP"]
    )
    batches: int = Field(description="How many batches were accepted.")
    rows: int
    bytes: int = Field(description="Size of its files.")
    created_at: datetime
    newest_at: datetime | None = Field(description="When its newest batch was accepted.")

    @classmethod
    def of(cls, stream: InputStream) -> Self:
        """As the database has it."""
        return cls.model_validate(
            {
                "name": stream.name,
                "schema": stream.ddl,
                "batches": stream.batches,
                "rows": stream.rows,
                "bytes": stream.bytes,
                "created_at": timestamp(stream.created_at),
                "newest_at": None if stream.newest_at is None else timestamp(stream.newest_at),
            }
        )


def require_stream(session: Session, tenant: str, name: str, *, lock: bool = False) -> InputStream:
    """The tenant's stream, locked until the transaction ends where that is asked for. Raises StreamNotFoundError."""
    stream = ingest.find_stream(session, tenant, name, lock=lock)
    if stream is None:
        raise no_such_stream(name)
    return stream


def no_such_stream(name: str) -> StreamNotFoundError:
    """The refusal for a name that no stream has."""
    return StreamNotFoundError(f"No stream is called '{name}'. Declare it: PUT /v1/streams/{name} with its schema.")
