"""Runs `evenkeel` as a user does: in processes outside of the checkout, with an address and a key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 180.0


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The standard output, parsed as one JSON document."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """The standard output, parsed as a JSON object for each line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


@dataclass(frozen=True)
class Running:
    """A running command."""

    process: subprocess.Popen[str]
    output: Path
    errors: Path

    @property
    def output_text(self) -> str:
        """The standard output so far."""
        return self.output.read_text()

    @property
    def error_output(self) -> str:
        """The standard error so far."""
        return self.errors.read_text()

    def done(self) -> Done:
        """Waits for the end of the command."""
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the command did not end:\n{self.error_output}") from None
        return Done(code, self.output_text, self.error_output)


@dataclass(frozen=True)
class CommandLine:
    """Commands that run in `directory` against the service at `url`."""

    directory: Path
    url: str
    key: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a command."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
        asked = {"EVENKEEL_URL": self.url, **({"EVENKEEL_API_KEY": self.key} if self.key else {})}
        return {**kept, **asked, **self.more}

    def start(self, *arguments: str, text: str | None = None) -> Running:
        """Starts a command; `text` is its standard input."""
        number = len(list(self.directory.glob("errors-*")))
        output, errors = (self.directory / f"{name}-{number}" for name in ("output", "errors"))
        with output.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "service.cli", *arguments],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
                stdout=out,
                stderr=err,
                text=True,
            )
        if text is not None:
            assert process.stdin is not None
            process.stdin.write(text)
            process.stdin.close()
        return Running(process, output, errors)

    def run(self, *arguments: str, text: str | None = None) -> Done:
        """Runs a command to its end."""
        return self.start(*arguments, text=text).done()
