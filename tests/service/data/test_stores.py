"""A store answers, or it is told in time why it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import Any

import pytest
from pyarrow import fs

from service.config.data import DataSettings, parse_root
from service.data.roots import (
    FAILED_CONNECT_SECONDS,
    Child,
    ListingOverdueError,
    Store,
    StoreUnavailableError,
    open_store,
    translated,
)
from tests.support.object_store import KEYS, running_object_store
from tests.support.processes import wait_for

HDFS = parse_root("hdfs://namenode:8020")


def store_at(endpoint: str) -> Store:
    settings = DataSettings(
        s3_endpoint=endpoint,
        s3_region="us-east-1",
        s3_access_key=KEYS["aws_access_key_id"],
        s3_secret_key=KEYS["aws_secret_access_key"],
        store_connect_timeout_seconds=1,
        store_request_timeout_seconds=1,
        store_attempts=1,
    )
    return open_store(parse_root("s3a://bucket"), settings)


@pytest.mark.not_quick
def test_a_store_that_hangs_that_ends_and_that_comes_back(tmp_path: Path) -> None:
    with running_object_store(tmp_path) as server:
        server.make_bucket("bucket")
        server.put("bucket", {"in/x": b"12345"})
        store = store_at(server.endpoint)
        assert [(child.name, child.size) for child in store.children("in") or ()] == [("x", 5)]
        with store.open("in/x") as stream:
            server.freeze()
            asking: list[Callable[[], object]] = [
                lambda: store.children("in"),
                lambda: store.entry("in/x"),
                lambda: store.open("in/x"),
            ]
            for ask in asking:
                with pytest.raises(StoreUnavailableError, match="does not answer"):
                    ask()
            with pytest.raises(StoreUnavailableError, match="does not answer"), translated():
                stream.read()
            server.thaw()
            assert stream.read() == b"12345"
        server.stop()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            store.children("in")
        server.start()  # with nothing in it
        with pytest.raises(StoreUnavailableError, match="bucket of a data root does not exist"):
            store.children("in")


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("AWS Error NO_SUCH_KEY during GetObject operation", FileNotFoundError, "No such file"),
        ("AWS Error ACCESS_DENIED during GetObject operation", PermissionError, "Permission denied"),
        ("AWS Error SLOW_DOWN during ListObjectsV2 operation", StoreUnavailableError, "overloaded"),
        ("AWS Error REQUEST_EXPIRED during GetObject operation", StoreUnavailableError, "credentials"),
        (
            "AWS Error UNKNOWN (HTTP status 301) during HeadObject operation: No response body. Looks like the "
            "configured region is 'us-east-1' while the bucket is located in 'eu-central-1'.",
            StoreUnavailableError,
            "another region",
        ),
        ("HDFS connection failed", StoreUnavailableError, "HDFS of a data root does not answer"),
        ("HDFS pread failed. Detail: [errno 255]", StoreUnavailableError, "HDFS of a data root does not answer"),
        ("Unable to load libhdfs: no such file", StoreUnavailableError, "native client"),
    ],
)
def test_what_arrow_says_is_told_apart(text: str, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told), translated():
        raise OSError(text)


def test_what_is_no_fault_of_a_store_stays_as_it_is() -> None:
    for error in (OSError("not a Parquet file"), FileNotFoundError(2, "gone"), ValueError("x")):
        with pytest.raises(type(error)) as caught, translated():
            raise error
        assert caught.value is error


def test_requests_go_to_the_host_of_the_bucket_where_asked_to() -> None:
    settings = DataSettings(
        s3_endpoint="http://nowhere.invalid:1",
        s3_path_style=False,
        s3_region="x",
        store_attempts=1,
        s3_access_key="a",
        s3_secret_key="b",
    )
    with pytest.raises(OSError, match=r"bucket\.nowhere\.invalid") as caught:
        open_store(parse_root("s3://bucket"), settings).connect().get_file_info("bucket/x")
    assert "AWS Error" in str(caught.value)


class StandInForHdfs:
    """Answers as Arrow's client of HDFS does; there is no HDFS to ask in these tests. While it is away, a look finds
    nothing, as Arrow takes each failure of `GetPathInfo` for absence, and all else fails with Java's error number."""

    def __init__(self, directory: Path) -> None:
        self._files = fs.SubTreeFileSystem(str(directory), fs.LocalFileSystem())
        self.is_away = False
        self.error = OSError(255, "HDFS list directory failed. Detail: [errno 255] Unknown error 255")

    def get_file_info(self, asked: str | fs.FileSelector) -> fs.FileInfo | list[fs.FileInfo]:
        if not self.is_away:
            return self._files.get_file_info(asked)
        if isinstance(asked, str):
            return fs.FileInfo(asked, fs.FileType.NotFound)
        raise self.error

    def open_input_file(self, path: str) -> Any:
        if self.is_away:
            raise OSError(f"Opening HDFS file '{path}' failed. Detail: [errno 255] Unknown error 255")
        return self._files.open_input_file(path)


@pytest.fixture
def hdfs(tmp_path: Path) -> StandInForHdfs:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").write_bytes(b"12345")
    return StandInForHdfs(tmp_path)


def store_of(system: Any, **options: Any) -> Store:
    return Store(HDFS, lambda: system, **options)


def test_an_hdfs_that_goes_away_and_comes_back_lacks_no_file(hdfs: StandInForHdfs) -> None:
    store = store_of(hdfs)
    assert store.entry("in/x") == Child("x", is_file=True, is_directory=False, size=5)
    assert store.entry("in/y") is None
    assert store.children("y") is None
    asking: list[Callable[[], object]] = [
        lambda: store.entry("in/x"),
        lambda: store.entry(""),
        lambda: store.children("in"),
        lambda: store.open("in/x"),
    ]
    hdfs.is_away = True
    for error in (hdfs.error, OSError("neither a number nor HDFS by name"), FileNotFoundError(2, "gone")):
        hdfs.error = error
        for ask in asking:
            with pytest.raises(StoreUnavailableError, match="HDFS of a data root does not answer"):
                ask()
    hdfs.is_away = False
    assert store.entry("in/x") is not None


def test_what_is_wrong_with_a_path_in_hdfs_stays_so(hdfs: StandInForHdfs) -> None:
    hdfs.is_away = True
    hdfs.error = PermissionError(13, "Permission denied")
    with pytest.raises(PermissionError):
        store_of(hdfs).children("in")


def test_a_failed_connect_is_believed_for_some_seconds(hdfs: StandInForHdfs) -> None:
    now, tries = [100.0], []

    def connect() -> Any:
        tries.append(now[0])
        if len(tries) < 3:
            raise OSError("HDFS connection failed")
        return hdfs

    store = Store(HDFS, connect, clock=lambda: now[0])
    for moment in (100.0, 100.0, 100.0 + 0.9 * FAILED_CONNECT_SECONDS, 101.0 + FAILED_CONNECT_SECONDS):
        now[0] = moment
        with pytest.raises(StoreUnavailableError, match="does not answer") as caught:
            store.entry("in/x")
        assert "name node" in caught.value.advice
    now[0] += FAILED_CONNECT_SECONDS
    assert store.entry("in/x") is not None
    assert store.entry("in/y") is None
    assert tries == [100.0, 101.0 + FAILED_CONNECT_SECONDS, 101.0 + 2 * FAILED_CONNECT_SECONDS]


def test_those_who_wait_for_a_connect_share_its_failure_and_other_stores_do_not_wait(hdfs: StandInForHdfs) -> None:
    connecting, answered, arrived = Event(), Event(), Barrier(4)
    tries = []

    def connect() -> Any:
        tries.append(1)
        connecting.set()
        answered.wait(60)
        raise OSError("HDFS connection failed")

    store = Store(HDFS, connect, clock=lambda: 0.0)  # those who wait may be slow to wake

    def ask() -> None:
        arrived.wait(60)
        store.entry("in/x")

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask) for _ in range(3)]
        try:
            arrived.wait(60)
            assert connecting.wait(60)
            assert store_of(hdfs).entry("in/x") is not None
        finally:
            answered.set()
        assert [type(one.exception(60)) for one in asked] == [StoreUnavailableError] * 3
    assert len(tries) == 1


def test_a_listing_that_takes_too_long(hdfs: StandInForHdfs) -> None:
    release, lock = Event(), Lock()
    begun: list[str] = []

    class Slow:
        def get_file_info(self, asked: str | fs.FileSelector) -> Any:
            if isinstance(asked, fs.FileSelector):
                with lock:
                    begun.append(asked.base_dir)
                release.wait(60)
            return hdfs.get_file_info(asked)

    store = store_of(Slow(), search_seconds=0.01)
    try:
        for _ in range(2):
            with pytest.raises(ListingOverdueError, match="took too long") as caught:
                store.children("in")
        assert "EVENKEEL_DATA_STORE_SEARCH_SECONDS" in caught.value.advice
        wait_for("the listing to begin", lambda: begun)
        assert begun == ["/in"]
    finally:
        release.set()


def test_of_a_listing_no_more_is_made_than_is_asked_for() -> None:
    made: list[int] = []

    class Many:
        def get_file_info(self, _: object) -> Iterator[fs.FileInfo]:
            for number in range(1, 1000):
                made.append(number)
                yield fs.FileInfo(f"/in/{number}", fs.FileType.File, size=1)

    children = store_of(Many()).children("in")
    assert children is not None
    assert [next(children).name, next(children).name] == ["1", "2"]
    assert len(made) == 2
