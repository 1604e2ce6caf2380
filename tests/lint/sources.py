"""The Python files that the checks read."""

from __future__ import annotations

from pathlib import Path

PACKAGES = ("service", "workers")
"""The product's packages."""


def product_files(root: Path) -> list[Path]:
    """Returns the product's modules, relative to `root`."""
    return _files(root, PACKAGES, "*.py")


def test_files(root: Path) -> list[Path]:
    """Returns the files of tests, relative to `root`."""
    return _files(root, ("tests",), "test_*.py")


def _files(root: Path, folders: tuple[str, ...], pattern: str) -> list[Path]:
    return sorted(path.relative_to(root) for folder in folders for path in (root / folder).rglob(pattern))
