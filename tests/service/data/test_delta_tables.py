"""Delta tables among the files of other tables, and logs that are hostile, too large or incomplete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.files import find_stream_files, find_table_files
from service.data.table_resolution import Resolved, resolve_table


def write(path: Path, *values: int, mode: Any = "append") -> None:
    """Writes a version of a Delta table with one row for each value."""
    write_deltalake(path, pa.table({"v": list(values)}), mode=mode)


def resolved(root: Path, path: str = "t", *, is_stream: bool = False, **table: Any) -> Resolved:
    source = TableSource.model_validate({"path": path, **table})
    return resolve_table("t", source, (root,), is_stream=is_stream)


def refused(root: Path, path: str = "t", *, is_stream: bool = False, **table: Any) -> tuple[str, str]:
    """Returns code and text of the error."""
    with pytest.raises(SpecError) as caught:
        resolved(root, path, is_stream=is_stream, **table)
    return caught.value.code, caught.value.issues[0].detail


class TestNotRead:
    """Delta tables that a job does not read as such, but whose files it would find."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        write(tmp_path / "a" / "t", 1)
        write(tmp_path / "a" / "t", 2, mode="overwrite")
        return tmp_path

    @pytest.mark.parametrize("path", ["a/t[t]", "a/[t]", "a", "a/t/*.parquet", "a/*", "**/*.parquet", "a/t/"])
    def test_other_paths_than_its_own(self, root: Path, path: str) -> None:
        (root / "a" / "tt").symlink_to(root / "a" / "t")
        code, detail = refused(root, path, format="parquet")
        assert code == "unsupported_construct"
        assert "is a Delta table" in detail
        assert "'format' to delta" in detail

    def test_its_own_path(self, root: Path) -> None:
        assert "'a/t' is a Delta table" in refused(root, "a/t", format="parquet")[1]
        assert "'a/t' is a Delta table" in refused(root, "a/t", is_stream=True, format="parquet")[1]
        assert resolved(root, "a/t").source.format == "delta"

    def test_jobs_that_are_stored(self, root: Path) -> None:
        source = TableSource.model_validate({"path": "a/t", "format": "parquet"})
        assert len(find_table_files("t", source, (root,)).files) == 2
        assert len(find_stream_files("t", source, (root,)).files) == 2
        assert resolve_table("t", source, (root,), is_accepted=True).schema.names == ("v",)
