"""Node and the pinned packages of `tests/node`, installed once for each lock file."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "node"
MODULES = DIRECTORY / "node_modules"
OLDEST = 20

_INSTALL = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
_INSTALL_SECONDS = 300
_STAMP = MODULES / ".installed-from"
_QUIET = {
    "CI": "true",
    "NO_UPDATE_NOTIFIER": "1",
    "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true",
    "REDOCLY_TELEMETRY": "off",
}
"""Disables telemetry and update checks, so that the tools need no network."""


def node_packages() -> Path:
    """Returns the directory `node_modules` with all packages of package-lock.json.

    Raises AssertionError that says what to install if Node is missing or too old, or if packages cannot be installed.
    """
    _check_node()
    # One of several test processes installs the packages; the others wait.
    with (DIRECTORY / "package-lock.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = hashlib.sha256(lock.read()).hexdigest()
        if not _STAMP.exists() or _STAMP.read_text(encoding="utf-8") != wanted:
            _install()
            _STAMP.write_text(wanted, encoding="utf-8")
    return MODULES


def run_node(
    command: Sequence[str | Path],
    *,
    cwd: Path = DIRECTORY,
    environment: Mapping[str, str] | None = None,
    seconds: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Runs a program of the packages (`redocly lint …`) or `node`, and returns its exit code and both outputs."""
    packages = node_packages()
    program, *arguments = map(str, command)
    executable = program if program == "node" else str(packages / ".bin" / program)
    return subprocess.run(
        [executable, *arguments],
        cwd=cwd,
        env={**os.environ, **_QUIET, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@cache
def _check_node() -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise AssertionError(
            f"These tests need Node {OLDEST} or newer with npm (nodejs.org, or `apt install nodejs npm`)."
        )
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    major = re.match(r"v(\d+)\.", version)
    if major is None or int(major[1]) < OLDEST:
        raise AssertionError(f"These tests need Node {OLDEST} or newer; {node} is {version.strip()}.")


def _install() -> None:
    done = subprocess.run(
        ["npm", *_INSTALL],
        cwd=DIRECTORY,
        env={**os.environ, **_QUIET},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(
            f"npm could not install the packages of tests/node/package-lock.json:\n{done.stdout}{done.stderr}"
        )
