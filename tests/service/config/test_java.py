"""The search for Java, with executables that print what real ones print."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.config.processes import JavaError, find_java, parse_version


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ('java version "11.0.21" 2023-10-17 LTS', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(said: str, major: int | None) -> None:
    assert parse_version(said) == major


def fake_java(directory: Path, says: str, code: int = 0) -> Path:
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    other = fake_java(tmp_path / "other", 'openjdk version "17.0.1"')
    both = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert (find_java(both).path, find_java(both).version) == (home, 21)
    assert find_java({"PATH": str(other.parent)}).version == 17


@pytest.mark.parametrize(
    ("says", "code", "told"),
    [
        ('openjdk version "11.0.1"', 0, "is Java 11; Spark needs 17"),
        ("no runtime", 0, "printed no version"),
        ('openjdk version "17.0.1"', 1, "printed no version"),
    ],
)
def test_an_unusable_java_is_refused_with_advice(tmp_path: Path, says: str, code: int, told: str) -> None:
    java = fake_java(tmp_path, says, code)
    with pytest.raises(JavaError, match=told) as raised:
        find_java({"PATH": str(java.parent)})
    assert "JAVA_HOME" in raised.value.advice


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="no java is on PATH"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaError, match="which contains no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("not a program")
    with pytest.raises(JavaError, match="cannot be run"):
        find_java({"JAVA_HOME": str(tmp_path)})
