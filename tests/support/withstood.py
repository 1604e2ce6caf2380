"""Generates the README's table of faults and attacks from the `withstands` marks of tests.

    @pytest.mark.withstands("a worker is killed", how="`kill -9` during a job", times=1, guaranteed="…")

The arguments of a mark must be literals. `times` is the number of repetitions in one full run of the test.
`python -m tests.support.withstood` fails if README.md is out of date; with `--write` it updates README.md.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
START, END = "<!-- table faults -->", "<!-- end of table -->"
KINDS = ("fault", "attack")
_HEAD = (
    "| {kind} | how the test causes it | times in a full run | guarantee | test |\n| --- | --- | ---: | --- | --- |\n"
)


@dataclass(frozen=True, order=True)
class Withstood:
    """A fault or an attack, and the test of its guarantee."""

    kind: str
    what: str
    how: str
    times: int
    guaranteed: str
    test: str


def marks(root: Path = ROOT) -> Iterator[Withstood]:
    """Yields every mark of the tests below `root`. Raises ValueError for an invalid mark."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                test = f"{path.relative_to(root)}::{node.name}"
                yield from (_read(mark, test) for mark in node.decorator_list if _is_mark(mark))


def table(found: Iterator[Withstood]) -> str:
    """Returns the Markdown tables, faults first."""
    rows = sorted(set(found))
    return "\n".join(_table(kind, [row for row in rows if row.kind == kind]) for kind in KINDS)


def with_table(text: str) -> str:
    """Returns `text` with a new table between the markers. Raises ValueError without markers."""
    before, found, rest = text.partition(START)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the README has no markers for the table: {START} … {END}")
    return f"{before}{START}\n{table(marks())}{END}{after}"


def _is_mark(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.withstands"


def _read(node: ast.expr, test: str) -> Withstood:
    assert isinstance(node, ast.Call)
    try:
        (what,) = (ast.literal_eval(argument) for argument in node.args)
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        one = Withstood(given.pop("kind", "fault"), what, test=test, **given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{test}: a mark needs literals: what, how, times, guaranteed ({error})") from error
    if one.kind not in KINDS:
        raise ValueError(f"{test}: kind {one.kind} is not one of {', '.join(KINDS)}")
    return one


def _table(kind: str, rows: list[Withstood]) -> str:
    lines = (f"| {row.what} | {row.how} | {row.times} | {row.guaranteed} | `{row.test}` |\n" for row in rows)
    return _HEAD.format(kind=kind) + "".join(lines)


def main(arguments: list[str]) -> int:
    """Returns exit code 0 if README.md is up to date or was updated."""
    text = README.read_text(encoding="utf-8")
    wanted = with_table(text)
    if "--write" in arguments:
        README.write_text(wanted, encoding="utf-8")
        return 0
    if text != wanted:
        sys.stderr.write("README.md is out of date: python -m tests.support.withstood --write\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
