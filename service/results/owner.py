"""Whose a results directory is: a file in it bears the id of the installation that was first to remove files there."""

from __future__ import annotations

from pathlib import Path

OWNER = ".evenkeel-installation"


def belongs_to(results: Path, installation: str) -> bool:
    """Whether the directory bears this id; one that bears none is given it. False too where it cannot be read."""
    path = results / OWNER
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(installation)
        return True
    except FileNotFoundError:
        # Without a directory there is nothing to own.
        return True
    except OSError:
        # There already, or not ours to write.
        return bears(results, installation)


def bears(results: Path, installation: str | None) -> bool:
    """As `belongs_to`, and changes nothing: a directory without an id belongs to whoever asks."""
    try:
        return (results / OWNER).read_text(encoding="ascii").strip() == installation
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
