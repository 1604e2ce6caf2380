"""Deletes a stream with its batches and files, unless jobs still read it."""

from __future__ import annotations

import shutil
from pathlib import Path

import structlog

from service.datasets.input_streams import stream_directory
from service.errors import StreamInUseError
from service.jobs.stream_views import require_stream
from service.store import ingest
from service.store.session import Database

_log = structlog.get_logger(__name__)

_NAMED = 5


def delete_stream(database: Database, streams_dir: Path, tenant: str, name: str) -> None:
    """Removes the stream, then every file of it.

    Raises StreamNotFoundError, and StreamInUseError while a job reads it that has not finished.
    """
    with database.write() as session:
        stream = require_stream(session, tenant, name, lock=True)
        readers = ingest.readers_of(session, tenant, name)
        if readers:
            more = f" and {len(readers) - _NAMED} more" if len(readers) > _NAMED else ""
            raise StreamInUseError(
                f"Jobs read the stream that have not finished: {', '.join(readers[:_NAMED])}{more}. Cancel them first."
            )
        ingest.delete_stream(session, tenant=tenant, name=name)
    # After the commit: files without a stream are garbage, a stream without its files would be a broken promise.
    directory = stream_directory(streams_dir, tenant, name, stream.id)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        _log.warning("files_not_removed", path=str(directory))
