"""A results directory belongs to who came first, until somebody takes its mark away."""

from __future__ import annotations

from pathlib import Path

from service.results.directories import OWNER, claim_directory, is_own_directory


def test_the_first_one_owns_it(tmp_path: Path) -> None:
    assert is_own_directory(tmp_path, "a")
    assert is_own_directory(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
    assert claim_directory(tmp_path, "a")
    assert claim_directory(tmp_path, "a")
    assert not claim_directory(tmp_path, "b")
    assert (is_own_directory(tmp_path, "a"), is_own_directory(tmp_path, "b"), is_own_directory(tmp_path, None)) == (
        True,
        False,
        False,
    )
    (tmp_path / OWNER).unlink()
    assert claim_directory(tmp_path, "b")


def test_a_mark_that_cannot_be_read_is_another_ones(tmp_path: Path) -> None:
    for content in (b"", b"\xff"):
        (tmp_path / OWNER).write_bytes(content)
        assert not claim_directory(tmp_path, "a")
        assert not is_own_directory(tmp_path, "a")


def test_no_directory_is_nobodys(tmp_path: Path) -> None:
    assert claim_directory(tmp_path / "not yet", "a")
    assert not (tmp_path / "not yet").exists()
