"""Finding the Java that Spark will use, without starting Spark."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ADVICE = f"Install a JDK or JRE of version {OLDEST_JAVA} or newer, or point JAVA_HOME at one."


class JavaError(RuntimeError):
    """No usable Java: what is wrong, and what to do about it."""

    def __init__(self, message: str, advice: str) -> None:
        self.message = message
        self.advice = advice
        super().__init__(f"{message}. {advice}")


@dataclass(frozen=True)
class Java:
    """An executable and its major version."""

    path: Path
    version: int


def find_java(environment: Mapping[str, str]) -> Java:
    """The Java that Spark starts: `$JAVA_HOME/bin/java` where that is set, else `java` on PATH.

    Raises JavaError where there is none, it cannot be run, or it is too old.
    """
    path = _locate(environment)
    try:
        answer = subprocess.run(  # noqa: S603 - the executable that Spark would start as well
            [path, "-version"], capture_output=True, text=True, timeout=20, check=False, env=dict(environment)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _missing(f"{path} cannot be run: {error}") from None
    version = parse_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise _missing(f"{path} -version gave no version")
    if version < OLDEST_JAVA:
        raise _missing(f"{path} is Java {version}; Spark needs {OLDEST_JAVA} or newer")
    return Java(path, version)


def parse_version(text: str) -> int | None:
    """The major version in what `java -version` prints: 8 for `1.8.0_392`, 17 for `17.0.15`, 21 for `21`."""
    match = _VERSION.search(text)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second is not None else int(first)


def _locate(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise _missing(f"JAVA_HOME is {home}, and there is no bin/java in it")
        return path
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise _missing("there is no Java: JAVA_HOME is not set and PATH has no java")
    return Path(found)


def _missing(message: str) -> JavaError:
    return JavaError(message, _ADVICE)
