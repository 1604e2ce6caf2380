"""Errors of reading files are one sentence for each kind, without any path but the name of a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from service.data.roots import StoreUnavailableError
from workers.engine.spark.sampling import FileReads

PATH = Path("/secret/place/b.parquet")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Cannot open /secret/place"), os.strerror(errno.EACCES)),
        (OSError("Cannot read /secret/place"), "its content does not match its format"),
        (pa.ArrowInvalid("/secret/place is no Parquet"), "its content does not match its format"),
        (StoreUnavailableError("The store does not answer.", "Start it."), "The store does not answer"),
    ],
)
def test_reasons(error: Exception, expected: str) -> None:
    reads = FileReads()
    reads.add("The footer", PATH, error)
    assert reads.warnings() == (f"The footer of b.parquet cannot be read: {expected}.",)


def test_files_are_counted() -> None:
    reads = FileReads()
    assert reads.warnings() == ()
    for name in ("c", "a", "b"):
        reads.add("The footer", Path(name), ValueError())
    reads.add("A sample", None, ValueError())
    assert reads.warnings() == (
        "The footer of a and of 2 more cannot be read: its content does not match its format.",
        "A sample cannot be read: its content does not match its format.",
    )
