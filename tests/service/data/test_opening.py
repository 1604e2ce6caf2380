"""What is opened is what was found, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.file_io import open_without_links
from service.data.files import TableFiles, find_table_files, swapped
from service.data.schema_inference import infer_schema
from service.data.schemas import read_schema

PARQUET = TableSource.model_validate({"format": "parquet", "path": "t/deep"})
CSV = TableSource.model_validate({"format": "csv", "path": "t/deep"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with a table, beside a directory of the same names."""
    for place, name in (("root", "inside"), ("outside", "secret")):
        directory = tmp_path / place / "t" / "deep"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({name: [1]}), directory / "x.parquet")
    return tmp_path / "root"


def swap(path: Path, root: Path) -> None:
    """Puts in its place a link to what has its name outside."""
    path.rename(path.with_name("moved"))
    path.symlink_to(root.parent / "outside" / path.relative_to(root))


def find(root: Path, source: TableSource = PARQUET) -> TableFiles:
    return find_table_files("t", source, [root])


@pytest.mark.withstands(
    "a file is replaced by a link after its check",
    kind="attack",
    how="the file or a directory above it becomes a link out of the data root between the check and the read",
    times=3,
    guaranteed="the link's target is not read: `unreadable_file`",
)
@pytest.mark.parametrize("part", ["t/deep/x.parquet", "t/deep", "t"])
def test_what_was_swapped_for_a_link_is_not_read(root: Path, part: str) -> None:
    found = find(root)
    assert read_schema("t", PARQUET, found).names == ("inside",)
    assert swapped(found) is None
    swap(root / part, root)
    for read in (read_schema, infer_schema):
        with pytest.raises(SpecError) as caught:
            read("t", PARQUET if read is read_schema else CSV, found)
        assert caught.value.code == "unreadable_file"
        assert "secret" not in str(caught.value)
    told = swapped(found)
    assert told is not None
    assert (told.code, told.issues[0].pointer) == ("path_outside_data_roots", "/tables/t/path")


def test_a_file_that_became_a_pipe_is_not_waited_for(root: Path) -> None:
    found = find(root)
    (root / "t/deep/x.parquet").unlink()
    os.mkfifo(root / "t/deep/x.parquet")
    with pytest.raises(SpecError) as caught:
        read_schema("t", PARQUET, found)
    assert caught.value.code == "unreadable_file"


def test_a_directory_and_what_is_gone_are_no_files(root: Path) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        open_without_links(root / "t")
    with pytest.raises(FileNotFoundError):
        open_without_links(root / "gone")


def test_a_swap_back_leaves_nothing_to_tell(root: Path) -> None:
    """The window that remains: see `service.data.files`."""
    found = find(root)
    (root / "t").rename(root / "away")
    (root / "away").rename(root / "t")
    assert swapped(found) is None
