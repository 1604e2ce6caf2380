"""The sink that adds Parquet files: it publishes each mini-batch once and completely."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from service.sql.types.data_types import BIGINT, NULL, STRING, Field
from tests.support.staged import EVERY_TYPE, staged
from workers.engine.streaming.sinks.append import AppendingSink, FileFormat
from workers.engine.streaming.sinks.base import FenceLostError, SinkError, SinkTarget, Staged

COLUMNS = (Field("k", STRING), Field("n", BIGINT))


def sink_at(path: Path, fence: int = 1, app: str = "evenkeel/job/1", **changes: Any) -> AppendingSink:
    settings = {"columns": COLUMNS, "output": changes.get("columns", COLUMNS), "keys": None, **changes}
    sink = AppendingSink(path, SinkTarget(app, fence, **settings))
    sink.prepare()
    return sink


def before_its_rename(monkeypatch: pytest.MonkeyPatch, sink: AppendingSink, happens: Callable[[], object]) -> None:
    """What happens between the sink's last look for newer tokens and its rename."""
    check = AppendingSink._check_token
    looks = 0

    def hanging(looking: AppendingSink) -> None:
        nonlocal looks
        check(looking)
        looks += looking is sink
        if looking is sink and looks == 2:
            happens()

    monkeypatch.setattr(AppendingSink, "_check_token", hanging)


def begin_as_an_earlier_version(path: Path, fence: int, generation: int = 1) -> None:
    """What `prepare` did before there was `fences`."""
    ours = path / "_evenkeel"
    (ours / f"fence-{fence:012}").touch()
    for entry in list(ours.iterdir()):
        if entry.name.startswith("fence-") and int(entry.name.removeprefix("fence-")) < fence:
            entry.unlink()
        elif entry.name.startswith("."):
            shutil.rmtree(entry)
    for part in path.glob("part-g*"):
        if int(part.name.removeprefix("part-g").partition("-")[0]) < generation:
            shutil.rmtree(part)


def rows_at(path: Path) -> list[tuple[Any, ...]]:
    # As any reader of a directory would.
    return [tuple(row.values()) for row in ds.dataset(path, format="parquet").to_table().to_pylist()]


def test_mini_batches_are_published_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "out" / "windows"
    sink = sink_at(path)
    assert sink.committed() is None
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1), ("a", 1)], files=2))
    sink.commit(1, staged(tmp_path, COLUMNS, [], files=1))
    sink.commit(2, staged(tmp_path, COLUMNS, [("b", 2)]))
    again = sink_at(path, fence=2)
    assert again.committed() == 2
    again.commit(2, staged(tmp_path, COLUMNS, [("b", 9)]))
    assert rows_at(path) == [("a", 1), ("a", 1), ("b", 2)]
    manifest = json.loads((path / "_evenkeel" / "part-g1-b000000000000.json").read_text())
    assert manifest == {
        "files": [f"part-g1-b000000000000/0000{number}.parquet" for number in range(2)],
        "rows": 2,
    }


def test_an_older_attempt_is_fenced_off(tmp_path: Path) -> None:
    old = sink_at(tmp_path / "out", fence=3)
    sink_at(tmp_path / "out", fence=4)
    for late in (old.prepare, lambda: old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))):
        with pytest.raises(FenceLostError):
            late()


def test_an_attempt_that_hung_before_its_rename_publishes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    old = sink_at(path)
    before_its_rename(monkeypatch, old, lambda: sink_at(path, fence=2).commit(0, staged(tmp_path, COLUMNS, [("a", 1)])))
    # What it had in the making is gone, or what it brings is there already.
    with pytest.raises(FenceLostError):
        old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_at(path) == [("a", 1)]


def test_a_rename_publishes_nothing_that_is_being_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    old = sink_at(path)
    remove = shutil.rmtree
    swept: list[int] = []

    def sweep() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("shutil.rmtree", begin_to_remove)
            sink_at(path, fence=2)

    def begin_to_remove(directory: Path, *, ignore_errors: bool) -> None:
        # It holds the directory, wherever that goes, and has removed nothing yet.
        if any(directory.glob("*.parquet")):
            swept.append(os.open(directory, os.O_RDONLY))
        else:
            remove(directory, ignore_errors=ignore_errors)

    before_its_rename(monkeypatch, old, sweep)
    with pytest.raises(FenceLostError):
        old.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    for held in swept:
        for entry in list(os.scandir(held)):
            os.unlink(entry.name, dir_fd=held)
        os.close(held)
    assert len(swept) == 1
    new = sink_at(path, fence=3)
    assert new.committed() is None
    new.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_at(path) == [("a", 1)]


def test_an_attempt_that_hung_while_cleaning_removes_nothing_of_a_newer_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    old, new = sink_at(path), sink_at(path, fence=2)
    making = new._unpublished_path()
    making.mkdir()
    old._remove_older()
    assert making.is_dir()
    sink_at(path, fence=3)
    assert not making.exists()


def test_attempts_of_an_earlier_version_fence_and_are_fenced_off(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink_at(path)
    assert (path / "_evenkeel" / "fence-000000000001").exists()
    (path / "_evenkeel" / "fence-000000000003").touch()
    with pytest.raises(FenceLostError, match="Attempt 3"):
        sink_at(path, fence=2)


def test_an_attempt_of_an_earlier_version_fences_off_a_running_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = sink_at(path)
    sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    begin_as_an_earlier_version(path, fence=2)
    with pytest.raises(FenceLostError, match="Attempt 2"):
        sink.commit(1, staged(tmp_path, COLUMNS, [("b", 2)]))
    assert rows_at(path) == [("a", 1)]


@pytest.mark.parametrize("generation", [1, 2])
def test_a_mini_batch_after_the_listing_of_an_earlier_version_is_complete_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    path = tmp_path / "out"
    sink = sink_at(path)

    def overtaken() -> None:
        begin_as_an_earlier_version(path, 2, generation)
        if generation == 2:
            shutil.copytree(staged(tmp_path, COLUMNS, [("a", 9)]).files[0].parent, path / "part-g2-b000000000000")

    before_its_rename(monkeypatch, sink, overtaken)
    with pytest.raises(FenceLostError, match="Attempt 2"):
        sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1), ("b", 2)], files=2))
    assert rows_at(path) == {1: [("a", 1), ("b", 2)], 2: [("a", 9)]}[generation]


def test_a_directory_that_cannot_be_moved_does_not_block_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    left = sink_at(path)._unpublished_path()
    left.mkdir()
    rename = Path.rename

    def refused(source: Path, target: Path) -> Path:
        if source == left:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", refused)
    sink_at(path, fence=2).commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert (rows_at(path), left.is_dir()) == ([("a", 1)], True)


def test_a_mini_batch_does_not_list_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, rows = sink_at(tmp_path / "out"), staged(tmp_path, COLUMNS, [("a", 1)])
    listed = Path.iterdir
    seen: list[str] = []

    def listing(path: Path) -> Iterator[Path]:
        for entry in listed(path):
            seen.append(entry.name)
            yield entry

    monkeypatch.setattr(Path, "iterdir", listing)
    for number in range(3):
        sink.commit(number, rows)
    assert set(seen) == {"fence-000000000001"}


@pytest.mark.parametrize("point", ["_fill", "_write_manifest"])
def test_an_attempt_completes_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    path = tmp_path / "out"
    sink = sink_at(path)

    def ended(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(AppendingSink, point, ended)
        with pytest.raises(KeyboardInterrupt):
            sink.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    (path / "_evenkeel" / f".{7:032x}").mkdir()  # as earlier versions called it
    again = sink_at(path, fence=2)
    assert again.committed() == {"_fill": None, "_write_manifest": 0}[point]
    again.commit(0, staged(tmp_path, COLUMNS, [("a", 1)]))
    assert rows_at(path) == [("a", 1)]
    assert sorted(file.name for file in (path / "_evenkeel").iterdir()) == [
        "fence-000000000002",
        "fences",
        "making",
        "owner.json",
        "part-g1-b000000000000.json",
    ]


def test_a_newer_generation_replaces_the_rows_of_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink_at(path, fence=1).commit(7, staged(tmp_path, COLUMNS, [("a", 1)]))
    # Told by one that hung until its mini-batch was gone.
    (path / "_evenkeel" / "part-g1-b000000000008.json").touch()
    new = sink_at(path, fence=2, app="evenkeel/job/2")
    assert (new.committed(), list(path.glob("*/*.json"))) == (None, [path / "_evenkeel" / "owner.json"])
    new.commit(0, staged(tmp_path, COLUMNS, [("a", 2)]))
    assert rows_at(path) == [("a", 2)]


def test_some_of_the_columns_in_another_order(tmp_path: Path) -> None:
    columns = (*COLUMNS, Field("more", BIGINT))
    sink = sink_at(tmp_path / "out", columns=columns, output=COLUMNS[::-1])
    sink.commit(0, staged(tmp_path, columns, [("a", 1, 2), ("b", 3, 4)], files=2))
    assert rows_at(tmp_path / "out") == [(1, "a"), (3, "b")]


def test_lines_of_json(tmp_path: Path) -> None:
    columns = tuple(Field(f"c{place}", kind) for place, (kind, _) in enumerate(EVERY_TYPE))
    rows = [*zip(*(values for _, values in EVERY_TYPE), strict=True), (None,) * len(columns)]
    target = SinkTarget("evenkeel/job/1", 1, columns, columns, None)
    sink = AppendingSink(tmp_path / "out", target, FileFormat.JSON)
    sink.prepare()
    sink.commit(0, staged(tmp_path, columns, rows, files=2))
    (file,) = (tmp_path / "out").glob("part-g1-b*/*")
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [*found[0]] == [field.name for field in columns]
    assert [found[0][f"c{place}"] for place in (3, 6, 7, 8, 10)] == [
        -(2**63),
        "9999999999999999999999999999.0000000001",
        "",
        "",
        "0001-01-02T00:00:00.000000Z",
    ]
    assert (found[1]["c5"], found[1]["c7"], found[1]["c8"]) == ("-Infinity", "ä'\"\\\n\x01", "AP8=")
    assert set(found[2].values()) == {None}
    manifest = json.loads((tmp_path / "out" / "_evenkeel" / "part-g1-b000000000000.json").read_text())
    assert manifest == {"files": [f"part-g1-b000000000000/{file.name}"], "rows": 3}


def test_missing_files_are_an_error(tmp_path: Path) -> None:
    sink = sink_at(tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        sink.commit(0, Staged((tmp_path / "none.parquet",), 1, 1))
    assert (sink.committed(), [path.name for path in (tmp_path / "out").iterdir()]) == (None, ["_evenkeel"])


def test_unsupported_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    for changes in ({"keys": ()}, {"keys": ("k",)}):
        with pytest.raises(SinkError, match="rows of this result change"):
            sink_at(path, **changes)
    with pytest.raises(SinkError, match="The column n: the type VOID"):
        sink_at(path, columns=(Field("k", STRING), Field("n", NULL)))
    assert not path.exists()
    sink_at(path)
    with pytest.raises(SinkError, match="another job, evenkeel/job"):
        sink_at(path, fence=2, app="evenkeel/other/1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.csv").touch()
    with pytest.raises(SinkError, match=r"did not write, such as x\.csv"):
        sink_at(tmp_path / "full")
