"""Finding the files of a table of Parquet files, and what refuses it."""

from __future__ import annotations

import pytest

from service.datasets.files import TableFiles, find_table_files
from service.datasets.roots import Root
from service.spec.errors import SpecError
from service.spec.job import TableSource


def find(path: str, *roots: Root) -> TableFiles:
    """The files that a table `t` with this path reads. Raises SpecError."""
    return find_table_files("t", TableSource.model_validate({"format": "parquet", "path": path}), roots)


def refusal(path: str, *roots: Root) -> SpecError:
    """The error that refuses such a table."""
    with pytest.raises(SpecError) as caught:
        find(path, *roots)
    assert caught.value.issues[0].pointer == "/tables/t/path"
    return caught.value
