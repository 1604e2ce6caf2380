"""The version of the installed distribution: that of the client alone, or that of the service, which contains it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_DISTRIBUTIONS = ("evenkeel-client", "evenkeel")


def installed_version() -> str:
    """Returns the version, such as `0.1.0`; empty in a copy of the sources without an installation."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
