"""Appends a batch of posted rows: exactly once, completely, and durably before the response.

The rows are written to a hidden file, one transaction accepts the batch, and a rename publishes the file to readers. If
the process ends in between, a repeated post completes the batch, and so does `service.data.posted_rows`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import Field
from sqlalchemy.exc import IntegrityError

from service.config.settings import LimitSettings
from service.contract.errors import BatchIdReusedError, TooManyPostedBytesError
from service.contract.model import Frozen
from service.data.file_io import make_directory
from service.data.posted_rows import remove_hidden, segment_name, show, stream_directory, write_hidden
from service.ingest.parsing import rows_of
from service.jobs.limits import require_posted_bytes_capacity
from service.store import accounts, input_streams
from service.store.accounts import Counted
from service.store.input_streams import InputBatch, InputStream, NewBatch
from service.store.session import CommitUnknownError, Database
from service.streams.manage_streams import no_such_stream, require_stream, storage_unavailable

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class PostedRows:
    """A batch that a client posted."""

    tenant: str
    stream: str
    batch_id: str
    media_type: str
    body: bytes

    @property
    def sha256(self) -> str:
        """Identifies the batch. Includes the media type, because the same bytes may be other rows in another format."""
        return hashlib.sha256(self.media_type.encode() + b"\n" + self.body).hexdigest()


class AppendedRows(Frozen):
    """A batch that was accepted."""

    batch_id: str
    rows: int = Field(description="Rows of the batch.")
    replayed: bool = Field(description="True if it had been accepted before and nothing was added this time.")


def append_rows(database: Database, streams_dir: Path, limits: LimitSettings, posted: PostedRows) -> AppendedRows:
    """Stores the rows of a batch, unless they are already stored.

    Raises StreamNotFoundError, InvalidRowsError, BatchIdReusedError, TooManyPostedBytesError if the tenant's limit is
    reached, and StorageUnavailableError if the files cannot be written; the client can then simply repeat the post.
    """
    stream, earlier = _find_batch(database, limits, posted)
    if earlier is not None:
        return _replayed(streams_dir, stream, posted, earlier)
    table = rows_of(posted.body, posted.media_type, stream.schema)
    try:
        segment = write_hidden(streams_dir, table)
    except OSError as error:
        raise storage_unavailable(error) from error
    new = NewBatch(posted.batch_id, posted.sha256, segment.id, segment.rows, segment.bytes)
    try:
        with database.write() as session:
            if limits.posted_bytes:
                # Concurrent posts may all have passed the earlier check.
                accounts.lock_count(session, posted.tenant, Counted.POSTED_BYTES)
                require_posted_bytes_capacity(session, limits, posted.tenant)
            batch = input_streams.insert_batch(session, stream, new, database.now(session))
    except (IntegrityError, TooManyPostedBytesError):
        # Another request may have stored the same batch in the meantime, and may have reached the limit with it.
        remove_hidden(streams_dir, segment.id)
        stream, earlier = _find_batch(database, limits, posted)
        if earlier is None:
            raise
        return _replayed(streams_dir, stream, posted, earlier)
    except CommitUnknownError:
        # The batch may have been accepted: keep its file.
        raise
    except BaseException:
        remove_hidden(streams_dir, segment.id)
        raise
    if batch is None:
        remove_hidden(streams_dir, segment.id)
        raise no_such_stream(posted.stream)
    _publish(streams_dir, stream, posted, batch)
    return AppendedRows(batch_id=posted.batch_id, rows=batch.rows, replayed=False)


def _find_batch(database: Database, limits: LimitSettings, posted: PostedRows) -> tuple[InputStream, InputBatch | None]:
    with database.read() as session:
        stream = require_stream(session, posted.tenant, posted.stream)
        batch = input_streams.find_batch(session, tenant=stream.tenant, stream=stream.name, batch_id=posted.batch_id)
        if batch is None:
            require_posted_bytes_capacity(session, limits, posted.tenant)
        return stream, batch


def _replayed(streams_dir: Path, stream: InputStream, posted: PostedRows, earlier: InputBatch) -> AppendedRows:
    if earlier.sha256 != posted.sha256:
        raise BatchIdReusedError(
            "This batch id was used before with another body, which was accepted. Use a new id for new rows."
        )
    # Before the response: the process that accepted the batch may have ended before it published the file.
    _publish(streams_dir, stream, posted, earlier)
    return AppendedRows(batch_id=posted.batch_id, rows=earlier.rows, replayed=True)


def _publish(streams_dir: Path, stream: InputStream, posted: PostedRows, batch: InputBatch) -> None:
    directory = stream_directory(streams_dir, stream.tenant, stream.name, stream.id)
    target = directory / segment_name(batch.seq, batch.sha256)
    try:
        if show(streams_dir, batch.file, target):
            return
        # The file has been removed. Its rows are in the request, so write it again.
        _log.warning("posted_rows_written_again", stream=stream.name, batch_id=batch.batch_id)
        make_directory(directory)
        table = rows_of(posted.body, posted.media_type, stream.schema)
        show(streams_dir, write_hidden(streams_dir, table).id, target)
    except OSError as error:
        raise storage_unavailable(error) from error
