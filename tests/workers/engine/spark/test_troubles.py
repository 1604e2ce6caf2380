"""What cannot be read is told once a kind, with no more of a path than a name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from service.data.roots import StoreUnavailableError
from workers.engine.spark.sampling import Troubles

PATH = Path("/secret/place/b.parquet")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "Cannot open /secret/place"), os.strerror(errno.EACCES)),
        (OSError("Cannot read /secret/place"), "what it holds is not what its format has"),
        (pa.ArrowInvalid("/secret/place is no Parquet"), "what it holds is not what its format has"),
        (StoreUnavailableError("The store does not answer.", "Start it."), "The store does not answer"),
    ],
)
def test_reasons(error: Exception, told: str) -> None:
    troubles = Troubles()
    troubles.add("The footer", PATH, error)
    assert troubles.sentences() == (f"The footer of b.parquet cannot be read: {told}.",)


def test_files_are_counted() -> None:
    troubles = Troubles()
    assert troubles.sentences() == ()
    for name in ("c", "a", "b"):
        troubles.add("The footer", Path(name), ValueError())
    troubles.add("A sample", None, ValueError())
    assert troubles.sentences() == (
        "The footer of a and of 2 more cannot be read: what it holds is not what its format has.",
        "A sample cannot be read: what it holds is not what its format has.",
    )
