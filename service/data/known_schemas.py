"""Keeps the columns of local files that were read before, so that jobs over the same files do not parse them again.

A file is the same if device, inode, size and times are: a write changes them, except within the time resolution of the
file system. So the columns of a file that has just changed are not kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from typing import BinaryIO

from service.sql.types.data_types import Schema

_MAX_FILES = 1_000
_MAX_COLUMNS = 200
"""Of files with more columns nothing is kept, so that all take a few megabytes at most."""
_RECENT_NS = 2_000_000_000

Identity = tuple[int, ...]


def identity_of(stream: BinaryIO) -> Identity | None:
    """Returns what identifies the content of an opened local file; None if it has changed in the last two seconds."""
    found = os.fstat(stream.fileno())
    if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < _RECENT_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class KnownSchemas:
    """The columns of the files that were used last. Safe to share between threads."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[Identity, Schema] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, identity: Identity | None) -> Schema | None:
        """Returns the columns of a file; None if they are not known."""
        with self._lock:
            if identity is None or identity not in self._schemas:
                return None
            self._schemas.move_to_end(identity)
            return self._schemas[identity]

    def keep(self, identity: Identity | None, schema: Schema) -> None:
        """Keeps the columns of a file, if it has an identity and not too many of them."""
        if identity is None or len(schema.fields) > _MAX_COLUMNS:
            return
        with self._lock:
            self._schemas[identity] = schema
            if len(self._schemas) > _MAX_FILES:
                self._schemas.popitem(last=False)
