"""Tables in an object store: the same answers as for directories, and few requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyarrow import fs

from service.config.data import parse_root
from service.data import files as walking
from service.data.file_io import UriFile
from service.data.files import TableFiles
from service.data.roots import Store, StoreRoot, StoreUnavailableError
from tests.support.object_store import Bucket, Roots
from tests.support.tables import find, refusal


def uris(found: TableFiles) -> list[str]:
    return [file.uri for file in found.files if isinstance(file, UriFile)]


def test_a_directory_without_what_is_hidden(bucket: Bucket, roots: Roots) -> None:
    bucket.put("in/orders/b.parquet", "in/orders/a.parquet", "in/orders/_SUCCESS", "in/orders/.crc", "in/orders/")
    bucket.put("in/orders/_temporary/x.parquet", "in/orders/more/deep/c.parquet", "in/orders-too/d.parquet", "in2/e")
    base = f"s3a://{bucket.name}/in/orders"
    (root,) = roots(f"s3a://{bucket.name}/in")
    for path in ("orders", "./orders//", "orders/../orders", base, f"s3://{bucket.name}/in/orders/"):
        found = find(path, root)
        assert uris(found) == [f"{base}/a.parquet", f"{base}/b.parquet", f"{base}/more/deep/c.parquet"]
        assert found.bytes == 15
        assert str(found.directory_or_file) == base


def test_an_object_by_its_name_and_a_whole_bucket(bucket: Bucket, roots: Roots) -> None:
    bucket.put("one.parquet", "two.parquet")
    (root,) = roots(f"s3://{bucket.name}")
    assert uris(find("one.parquet", root)) == [f"s3://{bucket.name}/one.parquet"]
    assert find("one.parquet", root).bytes == 5
    assert len(find(".", root).files) == 2
    assert len(find(f"s3a://{bucket.name}", root).files) == 2


def test_odd_names_are_names(bucket: Bucket, roots: Roots) -> None:
    names = ["a b%20c.parquet", "12:30.parquet", "p[1]{x}*?.parquet", "ü#?.parquet", "x\\y"]
    bucket.put(*(f"in/{name}" for name in names))
    (root,) = roots(f"s3a://{bucket.name}/in")
    assert sorted(uris(find(".", root))) == sorted(f"s3a://{bucket.name}/in/{name}" for name in names)
    for name in names:
        assert uris(find(name, root)) == [f"s3a://{bucket.name}/in/{name}"]


def test_nothing_outside_is_reached(bucket: Bucket, roots: Roots) -> None:
    bucket.put("in/x", "in2/x", "secret")
    bucket.server.make_bucket(f"{bucket.name}-secret")
    bucket.server.put(f"{bucket.name}-secret", {"in/x": b"x"})
    (root,) = roots(f"s3a://{bucket.name}/in")
    before = len(bucket.server.requests())
    for path in (
        *("../secret", "..", "/etc/passwd", "/", "../in2", "%2e%2e/secret", "x/%2e%2e/%2e%2e/secret", "..%2fsecret"),
        *(f"s3a://{bucket.name}", f"s3a://{bucket.name}/in2", f"s3a://{bucket.name}-secret/in/x"),
        *(f"s3a://{bucket.name}/in/../secret", f"file:///{bucket.name}/in/x", f"hdfs://{bucket.name}/in/x"),
    ):
        error = refusal(path, root)
        assert error.code == "path_outside_data_roots"
        assert bucket.name not in str(error).replace(path, "")
    assert len(bucket.server.requests()) == before, "the store was not even asked"


def test_missing_empty_and_odd(bucket: Bucket, roots: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("in/parts/day=1/x.parquet", "in/empty/_SUCCESS", "in/marker/", "in/gap//x.parquet", "in/gap/y")
    bucket.put(*(f"in/many/{name}/x.parquet" for name in "abc"), "in/" + "d/" * 20 + "x.parquet")
    (root,) = roots(f"s3a://{bucket.name}/in")
    assert refusal("nothing", root).code == "path_not_found"
    assert refusal("parts/day=1/x.parquet/y", root).code == "path_not_found"
    assert refusal("a\x00b", root).code == "path_not_found"
    assert refusal("empty", root).code == "empty_directory"
    assert refusal("marker", root).code == "empty_directory"
    assert refusal("parts", root).code == "unsupported_construct"
    assert uris(find("gap", root)) == [f"s3a://{bucket.name}/in/gap/y"], "no path leads to a name with an empty part"
    assert "deep" in str(refusal("d", root))
    # Three directories and their three files.
    monkeypatch.setattr(walking, "MAX_FILES", 6)
    assert len(find("many", root).files) == 3
    monkeypatch.setattr(walking, "MAX_FILES", 5)
    assert refusal("many", root).code == "unsupported_construct"


def test_sizes_come_from_the_listing(bucket: Bucket, roots: Roots) -> None:
    bucket.put(*(f"in/orders/{number}.parquet" for number in range(30)))
    (root,) = roots(f"s3a://{bucket.name}/in")
    before = len(bucket.server.requests())
    assert find("orders", root).bytes == 150
    asked = bucket.server.requests()[before:]
    assert [line.split("?")[0] for line in asked] == [f"GET /{bucket.name}"]


def test_roots_of_both_kinds_are_tried_in_turn(bucket: Bucket, roots: Roots, tmp_path: Path) -> None:
    bucket.put("in/both", "in/there")
    (tmp_path / "both").write_bytes(b"1")
    (tmp_path / "here").write_bytes(b"1")
    local_first = roots(str(tmp_path), f"s3a://{bucket.name}/in")
    assert find("both", *local_first).files == (tmp_path / "both",)
    assert uris(find("there", *local_first)) == [f"s3a://{bucket.name}/in/there"]
    assert refusal("nowhere", *local_first).code == "path_not_found"
    assert refusal(str(tmp_path.parent), *local_first).code == "path_outside_data_roots"
    store_first = roots(f"s3a://{bucket.name}/in", str(tmp_path))
    assert uris(find("both", *store_first)) == [f"s3a://{bucket.name}/in/both"]
    assert find("here", *store_first).files == (tmp_path / "here",)


def test_a_file_uri_is_a_directory_of_this_machine(roots: Roots, tmp_path: Path) -> None:
    root_directory, outside = tmp_path / "root", tmp_path / "outside"
    (root_directory / "t").mkdir(parents=True)
    outside.mkdir()
    (root_directory / "t" / "a b.csv").write_bytes(b"12")
    (root_directory / "out").symlink_to(outside)
    (root_directory / "in").symlink_to(root_directory / "t")
    (root,) = roots(root_directory.as_uri())
    for path in (
        "t",
        "in",
        str(root_directory / "t"),
        (root_directory / "t").as_uri(),
        f"file://localhost{root_directory}/t",
    ):
        found = find(path, root)
        assert uris(found) == [f"file://{root_directory}/t/a b.csv"]
        assert found.bytes == 2
    for path in (
        "out",
        outside.as_uri(),
        f"{root_directory.as_uri()}/../outside",
        "s3a://root/t",
        f"file://other{root_directory}",
    ):
        assert refusal(path, root).code == "path_outside_data_roots"


def test_without_the_right_to_look(bucket: Bucket, roots: Roots) -> None:
    bucket.put("in/orders/a.parquet")
    lister = bucket.server.add_user(f"lister-{bucket.name}", ["s3:ListBucket"])
    stranger = bucket.server.add_user(f"stranger-{bucket.name}", ["ec2:*"])
    name = f"s3a://{bucket.name}/in"
    wrong = {**lister, "aws_secret_access_key": "wrong"}
    unknown = {"aws_access_key_id": "unknown", "aws_secret_access_key": "unknown"}
    bucket.server.require_credentials()
    try:
        assert len(find("orders", *roots(name, **bucket.server.variables(name, lister))).files) == 1
        error = refusal("orders", *roots(name, **bucket.server.variables(name, stranger)))
        assert (error.code, str(error)) == ("unreadable_file", "'orders' cannot be read: Permission denied.")
        for keys, told in ((wrong, "SIGNATURE_DOES_NOT_MATCH"), (unknown, "INVALID_ACCESS_KEY_ID")):
            with pytest.raises(StoreUnavailableError, match=told) as caught:
                find("orders", *roots(name, **bucket.server.variables(name, keys)))
            assert "EVENKEEL_DATA_S3_ACCESS_KEY" in caught.value.advice
            assert keys["aws_secret_access_key"] not in str(caught.value)
    finally:
        bucket.server.require_credentials(required=False)


def test_a_bucket_that_does_not_exist(roots: Roots) -> None:
    with pytest.raises(StoreUnavailableError, match="bucket of a data root does not exist") as caught:
        find("orders", *roots("s3a://no-such-bucket/in"))
    assert "EVENKEEL_DATA_ROOTS" in caught.value.advice


def test_a_store_that_is_not_there(roots: Roots) -> None:
    nowhere = roots("s3a://bucket/in", EVENKEEL_DATA_S3_ENDPOINT="http://127.0.0.1:1", EVENKEEL_DATA_STORE_ATTEMPTS="1")
    with pytest.raises(StoreUnavailableError, match="does not answer") as caught:
        find("orders", *nowhere)
    assert "127.0.0.1" not in str(caught.value)
    assert "EVENKEEL_DATA_S3_ENDPOINT" in caught.value.advice


def test_hdfs_without_hadoop_is_told_plainly(roots: Roots, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    (root,) = roots("hdfs://127.0.0.1:1/data")
    assert refusal("../x", root).code == "path_outside_data_roots"
    with pytest.raises(StoreUnavailableError, match="Hadoop's native client") as caught:
        find("x", root)
    assert "CLASSPATH" in caught.value.advice


class Listed:
    """In place of Arrow's client: directories whose entries come from a function."""

    def __init__(self, entries: Callable[[str], Any]) -> None:
        self._entries = entries

    def get_file_info(self, asked: fs.FileSelector) -> Any:
        return self._entries(asked.base_dir)


def root_of(entries: Callable[[str], Any], **options: Any) -> StoreRoot:
    location = parse_root("s3a://data")
    return StoreRoot(location, Store(location, lambda: Listed(entries), is_flat=True, **options))


def test_a_very_large_directory_is_counted_and_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "MAX_FILES", 5)
    numbers = iter(range(1000))
    root = root_of(lambda name: (fs.FileInfo(f"{name}/{number}", fs.FileType.File, size=1) for number in numbers))
    error = refusal("in", root)
    assert (error.code, str(error)) == ("unsupported_construct", "'in' has more than 5 files.")
    assert next(numbers) == 6


def test_a_search_that_takes_too_long_is_refused() -> None:
    release = Event()
    root = root_of(lambda _: [] if release.wait(60) else None, search_seconds=0.01)
    try:
        error = refusal("in", root)
    finally:
        release.set()
    assert error.code == "unsupported_construct"
    assert "Finding the files of 'in' took longer than 0.01 seconds" in str(error)
    assert "EVENKEEL_DATA_STORE_SEARCH_SECONDS" in str(error)


def test_the_time_of_a_search_is_that_of_all_its_directories() -> None:
    now = [0.0]

    def deeper(name: str) -> list[fs.FileInfo]:
        now[0] += 20.0
        return [fs.FileInfo(f"{name}/d", fs.FileType.Directory), fs.FileInfo(f"{name}/x", fs.FileType.File, size=1)]

    root = root_of(deeper, clock=lambda: now[0], search_seconds=50.0)
    assert refusal("in", root).code == "unsupported_construct"
    assert now[0] <= 80.0, "no directory is listed when the time is over"
