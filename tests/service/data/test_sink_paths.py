"""Where sinks may write files, as far as the API can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.contract.job import DeltaSink, ManagedSink, ParquetSink
from service.data.roots import find_sink_directory, issues_of_sink


def test_a_directory_below_the_first_root_or_inside_any(tmp_path: Path) -> None:
    roots = [tmp_path / "first", tmp_path / "second"]
    assert find_sink_directory("a/b", roots) == tmp_path / "first" / "a" / "b"
    assert find_sink_directory(str(tmp_path / "second" / "a"), roots) == tmp_path / "second" / "a"


@pytest.mark.parametrize("path", ["../elsewhere", "/elsewhere", ".", "link/out", "a/../../elsewhere"])
def test_a_path_outside_is_refused(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    for sink in (DeltaSink(kind="delta", path=path), ParquetSink(kind="parquet", path=path)):
        (issue,) = issues_of_sink(sink, [root])
        assert (issue.code, issue.pointer) == ("path_outside_sink_roots", "/sink/path")


def test_what_cannot_be_told_here_is_left_to_workers(tmp_path: Path) -> None:
    assert not issues_of_sink(DeltaSink(kind="delta", path="../out"), [])
    assert not issues_of_sink(DeltaSink(kind="delta", path="out"), [tmp_path])
    assert not issues_of_sink(ManagedSink(kind="managed"), [tmp_path])
