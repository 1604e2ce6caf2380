"""Java is found where Spark will look for it, and a missing or old one is said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.java import JavaError, require_java


def java_home(directory: Path, told: str, exit_code: int = 0) -> Path:
    """A JAVA_HOME whose java answers `-version` with `told`."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{told}' >&2\nexit {exit_code}\n")
    java.chmod(0o755)
    return directory


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_java_home_comes_first(tmp_path: Path, version: str) -> None:
    home = java_home(tmp_path / "home", f'openjdk version "{version}" 2025-04-15')
    path = java_home(tmp_path / "path", 'openjdk version "1.8.0_422"')
    found = require_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert found == home / "bin" / "java"


def test_path_is_searched_without_java_home(tmp_path: Path) -> None:
    home = java_home(tmp_path, 'java version "17.0.1"')
    assert require_java({"PATH": str(home / "bin")}) == home / "bin" / "java"


@pytest.mark.parametrize(("told", "major"), [('java version "1.8.0_422"', 8), ('openjdk version "11.0.2"', 11)])
def test_an_old_java_is_refused(tmp_path: Path, told: str, major: int) -> None:
    home = java_home(tmp_path, told)
    with pytest.raises(JavaError, match=rf"is Java {major}; Spark needs Java 17 or newer"):
        require_java({"JAVA_HOME": str(home)})


def test_no_java_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="No java on PATH and JAVA_HOME is not set"):
        require_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaError, match=r"JAVA_HOME is .*, but there is no"):
        require_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_does_not_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="does not run"):
        require_java({"JAVA_HOME": str(java_home(tmp_path / "a", "broken", exit_code=1))})
    with pytest.raises(JavaError, match="does not tell a version"):
        require_java({"JAVA_HOME": str(java_home(tmp_path / "b", "hello"))})
