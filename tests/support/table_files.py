"""Finds the files of a Parquet table, or the error that refuses it."""

from __future__ import annotations

import pytest

from service.contract.job import TableSource
from service.contract.problems import SpecError
from service.data.files import TableFiles, find_table_files
from service.data.roots import Root


def find(path: str, *roots: Root) -> TableFiles:
    """Returns the files of a table `t` with this path. Raises SpecError."""
    return find_table_files("t", TableSource.model_validate({"format": "parquet", "path": path}), roots)


def refusal(path: str, *roots: Root) -> SpecError:
    """Returns the error that refuses such a table."""
    with pytest.raises(SpecError) as caught:
        find(path, *roots)
    assert caught.value.issues[0].pointer == "/tables/t/path"
    return caught.value
