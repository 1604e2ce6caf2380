"""Delta tables among the files of other tables, and logs that are hostile, too large or incomplete."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data import delta_log, delta_snapshot, files
from service.data.files import find_stream_files, find_table_files
from service.data.table_resolution import resolve_table
from tests.support.object_store import Bucket, Roots
from tests.support.tables import refused, resolved

UUID = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"


def write(path: Path, *values: int, mode: Any = "append") -> None:
    """Writes a version of a Delta table with one row for each value."""
    write_deltalake(path, pa.table({"v": list(values)}), mode=mode)


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

    @pytest.mark.parametrize("format_", [None, "parquet"])
    @pytest.mark.parametrize("path", ["p/day=1", "p/day=1/x.parquet", "p/day=*/*.parquet", "p/*/x.parquet", "links"])
    def test_a_path_inside_of_one(self, root: Path, path: str, format_: str | None) -> None:
        write_deltalake(root / "p", pa.table({"v": [1], "day": [1]}), partition_by=["day"])
        (file,) = (root / "p" / "day=1").iterdir()
        file.rename(file.with_name("x.parquet"))
        (root / "links").mkdir()
        (root / "links" / "y.parquet").symlink_to(root / "p" / "day=1" / "x.parquet")
        code, detail = refused(root, path, format=format_)
        assert code == "unsupported_construct"
        assert "Delta table" in detail
        assert "'format' to delta" in detail

    def test_its_log_is_read(self, root: Path) -> None:
        assert resolved(root, "a/t/_delta_log/*.json").schema.find("commitInfo") is not None
        assert resolved(root, f"a/t/_delta_log/{0:020}.json").source.format == "json"

    def test_its_own_path(self, root: Path) -> None:
        assert "'a/t' is a Delta table" in refused(root, "a/t", format="parquet")[1]
        assert "'a/t' is a Delta table" in refused(root, "a/t", is_stream=True, format="parquet")[1]
        assert resolved(root, "a/t").source.format == "delta"

    def test_jobs_that_are_stored(self, root: Path) -> None:
        source = TableSource.model_validate({"path": "a/t", "format": "parquet"})
        assert len(find_table_files("t", source, (root,)).files) == 2
        assert len(find_stream_files("t", source, (root,)).files) == 2
        assert resolve_table("t", source, (root,), is_accepted=True).schema.names == ("v",)


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if `deltalake` opens the table."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("deltalake was called")

    monkeypatch.setattr(delta_snapshot, "DeltaTable", opened)


def log_of(root: Path) -> Path:
    return root / "t" / "_delta_log"


def with_checkpoint(root: Path) -> Path:
    """Writes a table of two versions with a checkpoint of the second; returns the checkpoint."""
    write(root / "t", 1)
    write(root / "t", 2)
    DeltaTable(root / "t").create_checkpoint()
    return log_of(root) / f"{1:020}.checkpoint.parquet"


def with_features(root: Path, *features: str) -> None:
    """Sets the features of readers in the first commit."""
    commit = log_of(root) / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    names = {"readerFeatures": features, "writerFeatures": features}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **names}}
    actions = [protocol if "protocol" in action else action for action in actions]
    commit.write_text("\n".join(map(json.dumps, actions)))


class TestCheckpointsOfVersion2:
    """Checkpoints that name further files of the log."""

    @pytest.mark.withstands(
        "a Delta checkpoint that names sidecar files",
        kind="attack",
        how="`..`, an absolute path and a `file:` URI as the path of a sidecar",
        times=3,
        guaranteed="422 `unsupported_construct`; neither the checkpoint nor the sidecar is loaded",
    )
    @pytest.mark.usefixtures("unopened")
    @pytest.mark.parametrize(
        "path", ["../../../../outside/side.parquet", "/outside/side.parquet", "file:///side.parquet"]
    )
    def test_a_sidecar(self, tmp_path: Path, path: str) -> None:
        checkpoint = with_checkpoint(tmp_path)
        sidecar = {"path": path, "sizeInBytes": 1, "modificationTime": 1}
        pq.write_table(pa.table({"txn": [{"appId": "x"}, None], "sidecar": [None, sidecar]}), checkpoint)
        code, detail = refused(tmp_path)
        assert code == "unsupported_construct"
        assert "v2Checkpoint" in detail

    @pytest.mark.usefixtures("unopened")
    @pytest.mark.parametrize("suffix", [f"{UUID}.parquet", f"{UUID}.json", "json"])
    @pytest.mark.parametrize("directory", ["", "more"])
    def test_a_name_of_a_checkpoint(self, tmp_path: Path, suffix: str, directory: str) -> None:
        write(tmp_path / "t", 1)
        (log_of(tmp_path) / directory).mkdir(exist_ok=True)
        (log_of(tmp_path) / directory / f"{0:020}.checkpoint.{suffix}").write_bytes(b"")
        assert "v2Checkpoint" in refused(tmp_path)[1]

    @pytest.mark.usefixtures("unopened")
    def test_a_hint(self, tmp_path: Path) -> None:
        with_checkpoint(tmp_path)
        hint = {"version": 1, "size": 1, "v2Checkpoint": {"path": "../x", "sidecarFiles": []}}
        (log_of(tmp_path) / "_last_checkpoint").write_text(json.dumps(hint))
        assert "v2Checkpoint" in refused(tmp_path)[1]

    @pytest.mark.parametrize("feature", ["v2Checkpoint", "typeWidening", "typeWidening-preview"])
    def test_the_feature(self, tmp_path: Path, feature: str) -> None:
        write(tmp_path / "t", 1)
        with_features(tmp_path, feature)
        assert f"has the feature {feature}, which is not read" in refused(tmp_path)[1]

    def test_usual_checkpoints_are_read(self, tmp_path: Path) -> None:
        checkpoint = with_checkpoint(tmp_path)
        assert pq.read_schema(checkpoint).get_field_index("sidecar") >= 0
        (log_of(tmp_path) / f"{0:020}.json").unlink()
        (log_of(tmp_path) / "_last_checkpoint").write_text("[" * 10_000)
        (log_of(tmp_path) / "_sidecars").mkdir()
        assert resolved(tmp_path).source.version == 1
        write(tmp_path / "t", 3)
        assert resolved(tmp_path).source.version == 2


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("name", ["_last_checkpoint", f"{1:020}.json", "_sidecars/x.parquet"])
def test_a_pipe_in_the_log(tmp_path: Path, name: str) -> None:
    write(tmp_path / "t", 1)
    (log_of(tmp_path) / name).parent.mkdir(exist_ok=True)
    os.mkfifo(log_of(tmp_path) / name)
    code, detail = refused(tmp_path)
    assert code == "unsupported_construct"
    assert "not a regular file" in detail


@pytest.mark.usefixtures("unopened")
def test_a_log_that_is_a_link(tmp_path: Path) -> None:
    write(tmp_path / "other", 1)
    (tmp_path / "t").mkdir()
    log_of(tmp_path).symlink_to(tmp_path / "other" / "_delta_log")
    assert "link" in refused(tmp_path)[1]


class TestLimits:
    """Logs that take much memory or time."""

    @pytest.mark.withstands(
        "a Delta checkpoint that is a bomb",
        kind="attack",
        how="a checkpoint of some KB with 2,000,000 equal rows",
        times=1,
        guaranteed="422 `unsupported_construct`; only the footer of the checkpoint is read",
    )
    @pytest.mark.usefixtures("unopened")
    def test_a_checkpoint_of_many_rows(self, tmp_path: Path) -> None:
        checkpoint = with_checkpoint(tmp_path)
        rows = pa.table({"txn": pa.repeat(pa.scalar({"appId": "x", "version": 1}), 2_000_000)})
        pq.write_table(rows, checkpoint)
        assert checkpoint.stat().st_size < 200 << 10
        code, detail = refused(tmp_path)
        assert code == "unsupported_construct"
        assert "log that is too large" in detail

    @pytest.mark.withstands(
        "a Delta checkpoint that has a long text once for many rows",
        kind="attack",
        how="100,000 files with the same path or the same partition value of a megabyte",
        times=2,
        guaranteed="422 `unsupported_construct` in less than 300 MB",
    )
    @pytest.mark.usefixtures("unopened")
    @pytest.mark.parametrize("column", ["path", "partitionValues"])
    def test_a_checkpoint_that_repeats_a_long_text(self, tmp_path: Path, column: str) -> None:
        checkpoint = with_checkpoint(tmp_path)
        count = 100_000
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * count), ["x" * (1 << 20)])
        values = texts
        if column == "partitionValues":
            values = pa.MapArray.from_arrays(range(count + 1), pa.array(["k"] * count), texts)
        added = pa.table({"add": pa.StructArray.from_arrays([values], [column])})
        pq.write_table(added, checkpoint, store_schema=False)
        assert checkpoint.stat().st_size < 10 << 20
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "too large" in refused(tmp_path)[1]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10

    @pytest.mark.usefixtures("unopened")
    def test_commits_of_many_actions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(4):
            write(tmp_path / "t", number)
        monkeypatch.setattr(delta_log, "MAX_LOG_ROWS", 8)
        assert "too large" in refused(tmp_path)[1]

    @pytest.mark.usefixtures("unopened")
    @pytest.mark.parametrize("limit", ["MAX_LOG_BYTES", "MAX_DECOMPRESSED_BYTES", "MAX_HINT_BYTES", "MAX_LOG_ENTRIES"])
    def test_limits_of_all_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
        checkpoint = with_checkpoint(tmp_path)
        write(tmp_path / "t", 3)
        size = checkpoint.stat().st_size
        values = {"MAX_LOG_BYTES": size + 1, "MAX_DECOMPRESSED_BYTES": size // 9, "MAX_LOG_ENTRIES": 3}
        monkeypatch.setattr(delta_log, limit, values.get(limit, 1))
        assert "too large" in refused(tmp_path)[1]

    def test_only_files_that_are_read_count(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(20):
            write(tmp_path / "t", number)
        DeltaTable(tmp_path / "t").create_checkpoint()
        read = sum(path.stat().st_size for path in log_of(tmp_path).glob("*.checkpoint.parquet"))
        monkeypatch.setattr(delta_log, "MAX_LOG_BYTES", read)
        monkeypatch.setattr(delta_log, "MAX_LOG_ROWS", 30)
        assert resolved(tmp_path).source.version == 19

    def test_more_files_than_the_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(3):
            write(tmp_path / "t", number)
        for path in (tmp_path / "t").glob("*.parquet"):
            # A missing file would be reported first if each were looked up.
            path.unlink()
        monkeypatch.setattr(files, "MAX_FILES", 2)
        assert "more than 2 files" in refused(tmp_path)[1]

    def test_more_columns_than_the_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_deltalake(tmp_path / "t", pa.table({"a": [1], "b": [1], "c": [1]}))
        monkeypatch.setattr(delta_snapshot, "MAX_COLUMNS", 2)
        assert "more than 2 columns" in refused(tmp_path)[1]


@pytest.mark.usefixtures("unopened")
def test_a_log_in_a_store_is_checked_too(
    bucket: Bucket, roots: Roots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_checkpoint(tmp_path)
    (log_of(tmp_path) / "more").mkdir()
    (log_of(tmp_path) / "more" / f"{0:020}.checkpoint.{UUID}.json").write_bytes(b"x")
    objects = {f"in/{path.relative_to(tmp_path)}": path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    bucket.server.put(bucket.name, {name: path.read_bytes() for name, path in objects.items()})
    source = TableSource.model_validate({"path": "t"})
    with pytest.raises(SpecError, match="v2Checkpoint"):
        resolve_table("t", source, roots(f"s3a://{bucket.name}/in"))
    bucket.server.delete(bucket.name, *(name for name in objects if UUID in name))
    monkeypatch.setattr(delta_log, "MAX_LOG_ROWS", 2)
    with pytest.raises(SpecError, match="too large"):
        resolve_table("t", source, roots(f"s3a://{bucket.name}/in"))


class TestDeletionVectors:
    """Deletion vectors in commits that a checkpoint does or does not replace."""

    def vectors(self, root: Path, *, is_used: bool) -> None:
        """Writes two versions, of which the first has a deletion vector if it `is_used`."""
        write(root / "t", 1)
        with_features(root, "deletionVectors")
        commit = log_of(root) / f"{0:020}.json"
        vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 4, "cardinality": 1}
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if is_used and "add" in action:
                action["add"]["deletionVector"] = vector
        commit.write_text("\n".join(map(json.dumps, actions)))
        (log_of(root) / f"{1:020}.json").write_text(json.dumps({"txn": {"appId": "x", "version": 1}}))

    @pytest.mark.parametrize("is_used", [True, False])
    def test_an_incomplete_checkpoint(self, tmp_path: Path, is_used: bool) -> None:
        checkpoint = with_checkpoint(tmp_path / "other")
        self.vectors(tmp_path, is_used=is_used)
        part = log_of(tmp_path) / f"{1:020}.checkpoint.{1:010}.{2:010}.parquet"
        part.write_bytes(checkpoint.read_bytes())
        if is_used:
            assert "has deletion vectors" in refused(tmp_path)[1]
        else:
            assert resolved(tmp_path).source.version == 1

    @pytest.mark.parametrize("is_used", [True, False])
    @pytest.mark.parametrize("parts", [1, 2])
    def test_a_complete_checkpoint(self, tmp_path: Path, parts: int, is_used: bool) -> None:
        self.vectors(tmp_path, is_used=is_used)
        checkpoint = with_checkpoint(tmp_path / "other")
        one = pq.read_table(checkpoint).slice(0, 0)
        commit = [json.loads(line) for line in (log_of(tmp_path) / f"{0:020}.json").read_text().splitlines()]
        rows = [{field.name: action.get(field.name) for field in one.schema} for action in commit]
        table = pa.Table.from_pylist([row for row in rows if any(row.values())], schema=one.schema)
        if parts == 1:
            pq.write_table(table, log_of(tmp_path) / f"{1:020}.checkpoint.parquet")
        else:
            for part in (1, 2):
                place = log_of(tmp_path) / f"{1:020}.checkpoint.{part:010}.{2:010}.parquet"
                pq.write_table(table.slice(0, 1) if part == 1 else table.slice(1), place)
        (log_of(tmp_path) / f"{0:020}.json").unlink()
        if is_used:
            assert "has deletion vectors" in refused(tmp_path)[1]
        else:
            assert resolved(tmp_path).source.version == 1
