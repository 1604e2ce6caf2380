"""Old probes are removed, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from workers.driver.driver import new_probe, remove_old_probes

NOW = 1_000_000.0


def make(path: Path, changed: float) -> Path:
    path.mkdir()
    (path / "part-0.parquet").write_bytes(b"rows")
    os.utime(path, (changed, changed))
    return path


def test_only_old_probes_are_removed(tmp_path: Path) -> None:
    make(new_probe(tmp_path), NOW - 1)
    kept = [
        make(new_probe(tmp_path), NOW + 1),
        make(tmp_path / ".probe-of-somebody-else", NOW - 1),
        make(tmp_path / "6fd3a2f6-6d0e-4d5e-9d0c-4a4a8b1c2d3e", NOW - 1),
    ]
    outside = make(tmp_path.parent / f"{tmp_path.name}-outside", NOW - 1)
    link = new_probe(tmp_path)
    link.symlink_to(outside)
    os.utime(link, (NOW - 1, NOW - 1), follow_symlinks=False)
    assert remove_old_probes(tmp_path, NOW) == 1
    assert sorted(tmp_path.iterdir()) == sorted([*kept, link])
    assert list(outside.iterdir()), "a link is not followed"


def test_no_directory_no_probes(tmp_path: Path) -> None:
    assert remove_old_probes(tmp_path / "none", NOW) == 0
