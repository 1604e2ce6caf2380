"""Finds the code blocks of README.md and docs/ by the comments before them, and runs their console sessions.

The comment in the line before a block says how the block is tested:

    <!-- executed: NAME -->        a session that `do_as_written` runs against a service with the demo's tables
    <!-- command: NAME -->         a command that a test of its own runs; also `commands` and `program`
    <!-- job: valid -->            the body of a submission that the service accepts
    <!-- job: CODE -->             the body of a submission that the service refuses with this error code
    <!-- not executed: REASON -->  what no test can run
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
TESTED_LANGUAGES = frozenset(("sh", "bash", "console", "python", "typescript", "sql", "json", "yaml"))
"""The languages of blocks that need a comment."""
ADDRESS = "localhost:8080"
_AN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CUT = ", …"
"""The rest of a line is not shown in the README."""
_SECONDS = 120
_CONTINUATION = "> "
_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
_COMMENT = re.compile(r"<!-- ([a-z ]+): (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced code block. `kind` and `name` are those of its comment, and empty if it has none."""

    document: Path
    line: int
    language: str
    kind: str
    name: str
    text: str

    @property
    def place(self) -> str:
        """The file and line, for messages."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(*kinds: str) -> list[Block]:
    """Returns the blocks of all documents in order; those of `kinds` only if there are any."""
    return [one for one in _all_blocks() if not kinds or one.kind in kinds]


@cache
def _all_blocks() -> tuple[Block, ...]:
    found = []
    for document in DOCUMENTS:
        before, lines = "", iter(enumerate(document.read_text(encoding="utf-8").splitlines(), start=1))
        for number, line in lines:
            if fence := _FENCE.match(line):
                text = []
                for _, inner in lines:
                    if inner.strip() == "```":
                        break
                    text.append(inner.removeprefix(fence[1]))
                comment = _COMMENT.fullmatch(before.strip())
                kind, name = (comment[1], comment[2]) if comment else ("", "")
                found.append(Block(document, number, fence[2], kind, name, "\n".join(text) + "\n"))
            before = line
    return tuple(found)


def block(marker: str) -> str:
    """Returns the text of the block after the comment `marker`, such as `command: demo`, which must occur once."""
    (found,) = (one.text for one in _all_blocks() if f"{one.kind}: {one.name}" == marker)
    return found


def do_as_written(console: str, address: str, directory: Path, environment: Mapping[str, str]) -> None:
    """Runs each command of `console` in `directory` against the service at `address` and compares its output with the
    text. New ids replace those of the text.

    Raises AssertionError with a command that fails or prints something else.
    """
    assigned, ids = "", dict[str, str]()
    for command, written in steps(console):
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
            of_text, printed_ids = _AN_ID.findall("\n".join(written)), _AN_ID.findall(done.stdout)
            assert len(of_text) == len(printed_ids), (command, done.stdout)
            ids |= zip(of_text, printed_ids, strict=True)
            wanted = [_with_ids(line, ids) for line in written]
            assert [_cut(found, line) for found, line in zip_longest(printed, wanted, fillvalue="")] == wanted, (
                command,
                printed,
            )


def steps(console: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the commands with their output.

    A command begins with `$ ` and ends where the shell accepts it. Its other lines begin with `> `, which tells the
    copy button of the site that they belong to it.
    """
    lines = iter(console.splitlines())
    command, printed = "", list[str]()
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
            while command.endswith("\\") or _is_unfinished(command):
                command += "\n" + next(lines).removeprefix(_CONTINUATION)
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
