"""Finds blocks of the README by the comment before them, and runs its console examples."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "localhost:8080"
_AN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CUT = ", …"
"""The rest of a line is not shown in the README."""
_SECONDS = 120


def block(marker: str) -> str:
    """Returns the fenced block after the comment `marker`, which must occur once."""
    text = README.read_text(encoding="utf-8")
    (found,) = re.findall(rf"<!-- {re.escape(marker)} -->\n```\w+\n(.*?)```\n", text, re.DOTALL)
    return str(found)


def do_as_written(console: str, address: str, directory: Path, environment: Mapping[str, str]) -> None:
    """Runs each command of `console` in `directory` against the service at `address` and compares its output with the
    text. New ids replace those of the text.

    Raises AssertionError with a command that fails or prints something else.
    """
    assigned, ids = "", dict[str, str]()
    for command, written in _steps(console):
        here = _with_ids(command, ids).replace(ADDRESS, address.removeprefix("http://"))
        if re.fullmatch(r"\w+=[^\s$]+", here):
            assigned += here + "\n"
            continue
        done = subprocess.run(
            ["bash", "-c", assigned + here],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        printed = [line.rstrip("\r") for line in done.stdout.splitlines()]
        if written:
            ids |= zip(_AN_ID.findall("\n".join(written)), _AN_ID.findall(done.stdout), strict=True)
            wanted = [_with_ids(line, ids) for line in written]
            assert [_cut(found, line) for found, line in zip(printed, wanted, strict=True)] == wanted, command


def _steps(console: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the commands with their output. A command begins with `$ ` and ends where the shell accepts it."""
    lines = iter(console.splitlines())
    command, printed = "", list[str]()
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
            while command.endswith("\\") or _is_unfinished(command):
                command += "\n" + next(lines)
        else:
            printed.append(line)
    yield command, printed


def _is_unfinished(command: str) -> bool:
    return subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False).returncode != 0


def _with_ids(text: str, ids: Mapping[str, str]) -> str:
    return _AN_ID.sub(lambda found: ids.get(found[0], found[0]), text)


def _cut(found: str, wanted: str) -> str:
    """Returns `found`, shortened where `wanted` is."""
    kept = wanted.removesuffix(_CUT)
    return kept + _CUT if kept != wanted and found.startswith(kept) else found
