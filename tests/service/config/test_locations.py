"""Data roots, and paths inside them: no path that leads outside is accepted."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.config.data import Location, LocationError, is_uri, join_roots, parse_root, resolve, split_roots

ROOT = parse_root("s3a://data/in")


def test_a_list_of_directories_is_split_at_path_separators() -> None:
    assert split_roots("/a::/b") == ("/a", "/b")
    assert split_roots("") == ()


def test_a_list_with_a_uri_is_split_at_commas() -> None:
    roots = ("s3a://data/in", "/a", "hdfs://namenode:8020/x")
    assert split_roots("s3a://data/in, /a,,hdfs://namenode:8020/x") == roots
    assert split_roots(join_roots(roots)) == roots
    assert split_roots(join_roots(["/a", "/b"])) == ("/a", "/b")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3a://data", Location("s3a", "data", ())),
        ("S3://data//in/./x/", Location("s3", "data", ("in", "x"))),
        ("hdfs://namenode:8020/a/../b", Location("hdfs", "namenode:8020", ("b",))),
        ("hdfs:///b", Location("hdfs", "", ("b",))),
        ("file:///data", Location("file", "", ("data",))),
        ("file://localhost/data", Location("file", "", ("data",))),
        ("s3a://data/my%20dir?a#b", Location("s3a", "data", ("my%20dir?a#b",))),
    ],
)
def test_roots(text: str, location: Location) -> None:
    assert parse_root(text) == location
    assert parse_root(str(location)) == location


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/a", "scheme://"),
        ("ftp://host/a", "the scheme 'ftp' is not supported"),
        ("gs://bucket/a", "s3a, s3, hdfs, file"),
        ("s3a://key:hunter2@bucket/a", "AWS default chain"),
        ("s3a:///a", "name of a bucket"),
        ("s3a://Bucket_1/a", "name of a bucket"),
        ("hdfs://name node/a", "name node"),
        ("file://host/a", "three slashes"),
        ("file:///", "whole machine"),
        ("s3a://data/../other", "above its start"),
        ("s3a://data/a\n", "not printable"),
        ("s3a://data/a:/b", "commas"),
    ],
)
def test_refused_roots(text: str, told: str) -> None:
    with pytest.raises(LocationError) as caught:
        parse_root(text)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given_path", "inside"),
    [
        ("orders", "s3a://data/in/orders"),
        ("./orders//x/../y/", "s3a://data/in/orders/y"),
        ("s3a://data/in", "s3a://data/in"),
        ("s3://data/in/orders", "s3a://data/in/orders"),
        ("S3A://data/other/../in/x", "s3a://data/in/x"),
        ("a b*?[1]{x}#%20", "s3a://data/in/a b*?[1]{x}#%20"),
        ("100%", "s3a://data/in/100%"),
    ],
)
def test_inside(given_path: str, inside: str) -> None:
    assert str(resolve(ROOT, given_path)) == inside


@pytest.mark.parametrize(
    "given_path",
    [
        "..",
        "../in2",
        "a/../../in",
        "/in",
        "/",
        "s3a://data",
        "s3a://data/in2/x",
        "s3a://data/in/../in2",
        "s3a://data-secret/in",
        "s3a://dat/in",
        "s3a://data/in/%2e%2e/%2E%2E/secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "s3a://data%2fin/x",
        "s3a://data:80/in",
        "s3a://user@data/in",
        "s3a://DATA/in",
        "s3n://data/in",
        "hdfs://data/in",
        "file:///in",
        "s3a://data/../data/in",
    ],
)
def test_outside(given_path: str) -> None:
    assert resolve(ROOT, given_path) is None


SEGMENTS = st.sampled_from(
    ["in", "in2", "a", "..", ".", "", "%2e%2e", "%2E.", "%2f", "%", "data", "..%2f..", "b c", "..."]
)
RELATIVE = st.lists(SEGMENTS, max_size=8).map("/".join)
PREFIXES = st.sampled_from(
    ["", "/", "s3a://data/", "s3://data/", "s3a://data-secret/", "s3a://dat", "S3A://data//", "file:///"]
)
GIVEN = st.one_of(st.tuples(PREFIXES, RELATIVE).map("".join), st.text(max_size=20), RELATIVE)


@given(GIVEN)
@example("s3a://data/in/..")
@example("a/%2e%2e/%2e%2e/x")
def test_no_path_that_normalises_outside_is_accepted(given_path: str) -> None:
    found = resolve(ROOT, given_path)
    if found is None:
        return
    assert (found.scheme, found.authority) == ("s3a", "data")
    assert not {"", ".", ".."} & set(found.parts)
    # By another's rules: those of the standard library for paths, on the text and on what it decodes to.
    for text in (given_path, unquote(given_path)):
        path = "/" + text.split("://", 1)[1].partition("/")[2] if is_uri(text) else f"/in/{text}"
        assert not is_uri(text) or text.split("://", 1)[1].partition("/")[0] == "data"
        clean = posixpath.normpath(path.replace("//", "/"))
        assert (clean + "/").replace("//", "/").startswith("/in/")
    assert f"/{found.path}" == posixpath.normpath("/" + str(found).removeprefix("s3a://data/"))


@given(GIVEN)
def test_a_path_inside_a_root_is_inside_its_parent(given_path: str) -> None:
    if is_uri(given_path) and resolve(ROOT, given_path) is not None:
        assert resolve(parse_root("s3a://data"), given_path) == resolve(ROOT, given_path)
