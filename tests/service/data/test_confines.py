"""What leads out of the data roots by way of links, among many files."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.config.data import Location
from service.data.file_changes import Confines
from service.data.roots import DirectoryRoot, Store, StoreRoot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`in/` of a root, with files, beside the secret of somebody else."""
    directory = tmp_path / "root" / "in" / "deep"
    directory.mkdir(parents=True)
    for name in ("1.csv", "deep/2.csv"):
        (directory.parent / name).write_text("1")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "hush.csv").write_text("1")
    # So does a name that begins alike.
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "hush.csv").write_text("1")
    return tmp_path / "root"


def paths(root: Path, *names: str) -> list[str]:
    return [f"{root}/in/{name}" for name in names]


def test_files_inside_and_links_between_them(root: Path) -> None:
    (root / "in" / "link.csv").symlink_to(root / "in" / "1.csv")
    (root / "in" / "way").symlink_to(root / "in" / "deep", target_is_directory=True)
    known = paths(root, "1.csv", "deep/2.csv", "link.csv", "way/2.csv", "gone.csv", "gone/3.csv")
    assert Confines([root]).first_outside(known) is None
    # A root that is told by way of a link is where that leads.
    other = root.parent / "other"
    other.symlink_to(root, target_is_directory=True)
    assert Confines([other]).first_outside(known) is None


@pytest.mark.parametrize("there", ["secrets", "root-2", "nowhere"])
def test_links_that_lead_out_are_found_and_named(root: Path, there: str) -> None:
    (root / "in" / "link.csv").symlink_to(root.parent / there / "hush.csv")
    (root / "in" / "deep" / "way").symlink_to(root.parent / there, target_is_directory=True)
    confines, base = Confines([root]), f"{root}/in"
    for name, link in (("link.csv", "link.csv"), ("deep/way/hush.csv", "deep/way"), ("deep/way/a/b.csv", "deep/way")):
        (path,) = paths(root, name)
        assert confines.first_outside([*paths(root, "1.csv", "deep/2.csv"), path]) == path
        assert confines.link_of(path, base) == link


def test_a_table_that_has_become_a_link(root: Path) -> None:
    (root / "in").rename(root / "before")
    (root / "in").symlink_to(root.parent / "secrets", target_is_directory=True)
    (path,) = paths(root, "hush.csv")
    confines = Confines([root])
    assert (confines.first_outside([path]), confines.link_of(path, f"{root}/in")) == (path, "")


def test_roots_in_stores_hold_nothing_of_this_machine(root: Path) -> None:
    location = Location("s3", "bucket", ())
    store = StoreRoot(location, Store(location, lambda: None, is_flat=True, search_seconds=1.0))
    (path,) = paths(root, "1.csv")
    assert Confines.of([store]).first_outside([path]) == path
    assert Confines.of([store, DirectoryRoot(root)]).first_outside([path]) is None
    assert Confines.of([store], [root / "in"]).first_outside([path]) is None
