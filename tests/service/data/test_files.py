"""Which files a table reads, and what stays out of reach."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.contract.problems import SpecError
from service.data import files as walking
from service.data.file_io import version_of
from service.data.files import TableFiles, pointer_of, unreadable
from service.data.roots import StoreUnavailableError
from tests.support.privileges import without_privileges
from tests.support.tables import find, refusal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root beside a secret."""
    root = tmp_path / "root"
    for name in ("orders/b.parquet", "orders/a.parquet", "orders/_SUCCESS", "orders/.a.parquet.crc", "one.parquet"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    (tmp_path / "secret.parquet").write_bytes(b"secret")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside" / "x.parquet").write_bytes(b"x")
    return root


def names(found: TableFiles, root: Path) -> list[str]:
    return [str(Path(str(file)).relative_to(root)) for file in found.files]


@pytest.mark.parametrize("path", ["orders", "orders/", "./orders", "orders/../orders", "orders//"])
def test_a_directory_without_its_hidden_files(root: Path, path: str) -> None:
    found = find(path, root)
    assert names(found, root) == ["orders/a.parquet", "orders/b.parquet"]
    assert found.bytes == 10
    assert found.directory_or_file == root / "orders"


def test_a_file_and_an_absolute_path_inside(root: Path) -> None:
    assert names(find("one.parquet", root), root) == ["one.parquet"]
    assert names(find(str(root / "one.parquet"), root), root) == ["one.parquet"]


def test_the_listing_tells_versions(root: Path) -> None:
    found = find("orders", root)
    assert found.versions == tuple(map(version_of, found.files))
    assert found.bytes == 10
    (root / "orders/a.parquet").write_bytes(b"123456")
    assert find("orders", root).versions[0] != found.versions[0]
    assert find("orders", root).versions[1] == found.versions[1]


def test_roots_are_tried_in_turn(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert names(find("orders", other, root), root) == ["orders/a.parquet", "orders/b.parquet"]


def test_a_link_inside_the_roots_is_followed(root: Path) -> None:
    (root / "linked").symlink_to(root / "orders")
    (root / "orders" / "c.parquet").symlink_to(root / "one.parquet")
    assert names(find("linked", root), root) == ["one.parquet", "orders/a.parquet", "orders/b.parquet"]


def test_a_root_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert names(find("one.parquet", tmp_path / "alias"), root) == ["one.parquet"]


def test_nested_directories_are_descended_into(root: Path) -> None:
    (root / "orders" / "more" / "deep").mkdir(parents=True)
    (root / "orders" / "more" / "deep" / "c.parquet").write_bytes(b"1")
    (root / "orders" / "_temporary").mkdir()
    (root / "orders" / "_temporary" / "d.parquet").write_bytes(b"1")
    assert len(find("orders", root).files) == 3


def test_nothing_outside_is_reached_nor_told_apart(root: Path, tmp_path: Path) -> None:
    (root / "out").symlink_to(tmp_path / "secret.parquet")
    (root / "dangling").symlink_to(tmp_path / "nothing")
    for path in (
        "../secret.parquet",
        "../nothing",
        "orders/../../secret.parquet",
        str(tmp_path / "secret.parquet"),
        str(tmp_path / "nothing"),
        "/etc/passwd",
        "/",
        "..",
        "../root-beside",
        str(tmp_path / "root-beside"),
        "out",
        "out/x",
        "dangling",
    ):
        error = refusal(path, root)
        assert error.code == "path_outside_data_roots"
        detail = f"'{path}' is not inside a data root. Paths are relative to the configured data roots."
        assert str(error) == detail


@pytest.mark.withstands(
    "a link in a table's directory",
    kind="attack",
    how="a link to a file outside the data roots among the files of a table",
    times=1,
    guaranteed="`path_outside_data_roots`, without the link's target",
)
def test_a_link_that_leads_out_of_a_directory(root: Path, tmp_path: Path) -> None:
    (root / "orders" / "x.parquet").symlink_to(tmp_path / "secret.parquet")
    error = refusal("orders", root)
    assert error.code == "path_outside_data_roots"
    assert str(tmp_path) not in str(error)


def test_missing_empty_and_odd(root: Path) -> None:
    (root / "empty").mkdir()
    (root / "empty" / "_SUCCESS").write_bytes(b"")
    (root / "parts" / "day=1").mkdir(parents=True)
    os.mkfifo(root / "pipe")
    (root / "piped").mkdir()
    os.mkfifo(root / "piped" / "pipe")
    (root / "gone").mkdir()
    (root / "gone" / "x.parquet").symlink_to(root / "missing")
    (root / "loop").symlink_to(root / "loop")
    assert refusal("nothing", root).code == "path_not_found"
    assert refusal("orders/a.parquet/x", root).code == "path_not_found"
    assert refusal("a\x00b", root).code == "path_not_found"
    assert refusal("x" * 4000, root).code == "path_not_found"
    assert refusal("empty", root).code == "empty_directory"
    assert refusal("parts", root).code == "unsupported_construct"
    assert refusal("pipe", root).code == "unsupported_construct"
    assert refusal("piped", root).code == "unsupported_construct"
    assert refusal("gone", root).code == "unsupported_construct"
    assert refusal("loop", root).code == "unsupported_construct"


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("order", ("orders",)),
        ("order/a.parquet", ()),
        ("orders/aa.parquet", ("orders/a.parquet",)),
        ("../data/order", ()),
        ("/etc/passwdd", ()),
        ("_order", ("orders",)),
        ("order/", ("orders",)),
        ("root/orders", ("orders",)),
        ("root/orders/a.parquet", ("orders/a.parquet",)),
        ("root", (".",)),
        ("root/../../outside", ()),
    ],
)
def test_a_path_that_does_not_exist_has_the_nearest_names(root: Path, path: str, near: tuple[str, ...]) -> None:
    (root / ".ordered").mkdir()
    error = refusal(path, root)
    assert error.issues[0].suggestions[: len(near) or None] == near
    advice = " A path begins inside of a data root, here inside of 'root': write "
    assert (advice in str(error)) is (path in {"root", "root/orders", "root/orders/a.parquet"})


def test_without_roots_nothing_is_readable(root: Path) -> None:
    assert refusal(str(root)).code == "path_outside_data_roots"


def test_an_unreadable_directory(root: Path) -> None:
    (root / "orders").chmod(0)
    try:
        with without_privileges(root):
            assert refusal("orders", root).code == "unreadable_file"
    finally:
        (root / "orders").chmod(0o755)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN])
def test_a_mounted_root_that_fails(number: int) -> None:
    told = unreadable("orders", OSError(number, "/mnt/secret"), "/tables/t/path")
    assert isinstance(told, StoreUnavailableError)
    assert "secret" not in str(told)


def test_a_loop_of_links_ends(root: Path) -> None:
    for name in ("again", "and-again"):
        (root / "orders" / name).symlink_to(root / "orders")
    assert refusal("orders", root).code == "unsupported_construct"


def test_pointers_are_escaped() -> None:
    assert pointer_of("a/b~c") == "/tables/a~1b~0c"


def test_the_number_of_files_counts_over_all_directories(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (root / "many" / name).mkdir(parents=True)
        (root / "many" / name / "x.parquet").write_bytes(b"x")
    # Three directories and their three files.
    monkeypatch.setattr(walking, "MAX_FILES", 6)
    assert len(find("many", root).files) == 3
    monkeypatch.setattr(walking, "MAX_FILES", 5)
    assert refusal("many", root).code == "unsupported_construct"


NAMES = ("a", "b", "base", "outside", "f")
STEPS = st.lists(st.sampled_from((*NAMES, "..", ".", "", "link0", "link1", "link2", "%2e%2e")), max_size=6)
PATHS = st.builds(lambda start, steps: start + "/".join(steps), st.sampled_from(("", "", "/", "TREE/", "URI/")), STEPS)
LINKS = st.lists(st.tuples(st.sampled_from(("base", "base/a", "base/a/b", "outside")), PATHS), max_size=3)


def grown(tree: Path, links: list[tuple[str, str]]) -> Path:
    """A root with `inside` in its files, and `outside` in those all around it; its canonical path is returned."""
    for directory in ("base/a/b", "outside/a", "base-beside", "a"):
        (tree / directory).mkdir(parents=True)
    for name in ("f", "a/f", "outside/f", "outside/a/f", "base-beside/f"):
        (tree / name).write_text("outside")
    for name in ("base/f", "base/a/f", "base/a/b/f"):
        (tree / name).write_text("inside")
    for number, (directory, target) in enumerate(links):
        (tree / directory / f"link{number}").symlink_to(told(target, tree) or ".")
    return Path(os.path.realpath(tree / "base"))


def told(path: str, tree: Path) -> str:
    return path.replace("TREE/", f"{tree}/").replace("URI/", f"file://{tree}/")


@pytest.mark.not_quick
@pytest.mark.withstands(
    "path traversal and symlinks",
    kind="attack",
    how="paths with `..`, encoded, absolute and as `file:` URIs, and links to any of them; generated by Hypothesis",
    times=100,
    guaranteed="only files inside a data root are read; other paths get `path_outside_data_roots`, whether they exist "
    "or not",
)
@given(LINKS, PATHS)
@example([("base", "../outside")], "link0/f")
@example([("base", "../outside"), ("base/a", "../link0")], "a")
@example([("base", "a"), ("base/a", "..")], "link0/link1/../f")
@example([("base/a", "TREE/outside")], "a/link0/../outside/f")
@example([("base", "link0")], "link0")
@example([], "a/missing/..")
@example([], "a/missing/../../../outside/f")
@example([], "../base-beside/f")
@example([], "TREE/base/a/../../outside/f")
@example([], "URI/base/../outside/f")
def test_no_path_and_no_link_leads_out_of_a_local_root(links: list[tuple[str, str]], path: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        root, given_path = grown(tree, links), told(path, tree) or "."
        # What the kernel opens there, without any name being looked at here.
        reached = root / given_path.removeprefix("file://")
        holds_what_is_inside = reached.is_file() and reached.read_text() == "inside"
        try:
            found = find(given_path, root)
        except SpecError as refused:
            is_refused, code = True, refused.code
        else:
            is_refused, code = False, ""
        if is_refused:
            assert not holds_what_is_inside, code
            return
        # The kernel may not have it: `missing/..` is left out before the path is opened.
        assert {Path(str(file)).read_text() for file in found.files} == {"inside"}
        place = Path(os.path.realpath(str(found.directory_or_file)))
        assert place == root or root in place.parents


@pytest.mark.withstands(
    "URIs of other schemes",
    kind="attack",
    how="`file:`, `jar:`, `http:`, `jdbc:`, `s3a:` and others, encoded, with hosts, users and fragments",
    times=14,
    guaranteed="`path_outside_data_roots`, or `path_not_found` if it is a valid file name; no request is sent",
)
@pytest.mark.parametrize(
    "path",
    [
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "file:/etc/passwd",
        "FILE:///etc/passwd",
        "file://evil.example/orders",
        "file:///ROOT/../secret.parquet",
        "jar:file:///ROOT/one.parquet!/x",
        "http://169.254.169.254/latest/meta-data",
        "https://evil.example/x.parquet",
        "ftp://evil.example/x",
        "jdbc:postgresql://127.0.0.1/postgres",
        "s3a://bucket/orders",
        "hdfs://namenode/orders",
        "viewfs://x/orders",
    ],
)
def test_other_schemes_lead_nowhere(root: Path, path: str) -> None:
    # What has no two slashes right behind its first colon is a name like any other, below the root.
    told = "path_outside_data_roots" if path.partition(":")[2].startswith("//") else "path_not_found"
    assert refusal(path.replace("/ROOT", str(root)), root).code == told


@pytest.mark.parametrize(
    "path", ["%2e%2e/secret.parquet", "..%2fsecret.parquet", "orders/%00", "\u2025/secret.parquet"]
)
def test_nothing_is_decoded(root: Path, path: str) -> None:
    assert refusal(path, root).code == "path_not_found"
