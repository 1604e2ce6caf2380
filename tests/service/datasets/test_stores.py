"""A store answers, or it is told in time why it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.data_settings import DataSettings
from service.datasets.roots import open_store
from service.datasets.stores import StorageUnavailableError, Store, translated
from service.spec.locations import parse_root
from tests.support.object_store import KEYS, running_object_store


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
                lambda: store.look("in/x"),
                lambda: store.open("in/x"),
            ]
            for ask in asking:
                with pytest.raises(StorageUnavailableError, match="does not answer"):
                    ask()
            with pytest.raises(StorageUnavailableError, match="does not answer"), translated():
                stream.read()
            server.thaw()
            assert stream.read() == b"12345"
        server.stop()
        with pytest.raises(StorageUnavailableError, match="does not answer"):
            store.children("in")
        server.start()  # with nothing in it
        with pytest.raises(StorageUnavailableError, match="bucket behind a data root does not exist"):
            store.children("in")


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("AWS Error NO_SUCH_KEY during GetObject operation", FileNotFoundError, "No such file"),
        ("AWS Error ACCESS_DENIED during GetObject operation", PermissionError, "Permission denied"),
        ("AWS Error SLOW_DOWN during ListObjectsV2 operation", StorageUnavailableError, "overloaded"),
        ("AWS Error REQUEST_EXPIRED during GetObject operation", StorageUnavailableError, "credentials"),
        (
            "AWS Error UNKNOWN (HTTP status 301) during HeadObject operation: No response body. Looks like the "
            "configured region is 'us-east-1' while the bucket is located in 'eu-central-1'.",
            StorageUnavailableError,
            "another region",
        ),
        ("HDFS connection failed", StorageUnavailableError, "HDFS behind a data root does not answer"),
        ("Unable to load libhdfs: no such file", StorageUnavailableError, "native client"),
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
