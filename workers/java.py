"""Finds the Java that Spark needs, and says so plainly where there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

OLDEST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaError(RuntimeError):
    """No usable Java; the message says what to do."""


def require_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The `java` that Spark will start: JAVA_HOME's, else the first on PATH. Raises JavaError below version 17."""
    java = _find(environment)
    version = _major_version(java)
    if version < OLDEST:
        raise JavaError(f"{java} is Java {version}; Spark needs Java {OLDEST} or newer. Set JAVA_HOME to one.")
    return java


def _find(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(f"JAVA_HOME is {home}, but there is no {java}. Install Java {OLDEST} or correct JAVA_HOME.")
        return java
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise JavaError(f"No java on PATH and JAVA_HOME is not set. Install Java {OLDEST} or newer.")
    return Path(found)


def _major_version(java: Path) -> int:
    try:
        told = subprocess.run(  # noqa: S603 - the operator's own java
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"{java} -version does not run: {error}") from error
    match = _VERSION.search(told.stderr + told.stdout)
    if match is None:
        raise JavaError(f"{java} -version does not tell a version: {told.stderr.strip()[:200]}")
    return int(match.group(1))
