"""Makes the documentation's tables of faults and attacks from the `withstands` marks of tests.

    @pytest.mark.withstands("a worker is killed", how="`kill -9` during a job", times=1, guaranteed="…")

The arguments of a mark must be literals. `times` is the number of repetitions in one full run of the test.
`docs.tables` writes the tables into `docs/explanation/faults.md`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ("fault", "attack")
_HEAD = (
    "| {kind} | How the test causes it | Times in a full run | Guarantee | Test |\n| --- | --- | ---: | --- | --- |\n"
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


def table(found: Iterable[Withstood], kind: str) -> str:
    """Returns the Markdown table of one kind."""
    rows = sorted({row for row in found if row.kind == kind})
    lines = (f"| {row.what} | {row.how} | {row.times} | {row.guaranteed} | `{row.test}` |" for row in rows)
    return _HEAD.format(kind=kind.capitalize()) + "\n".join(lines)


def _of_kind(kind: str) -> str:
    return table(marks(), kind)


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


TABLES: dict[str, Callable[[], str]] = {"faults": partial(_of_kind, "fault"), "attacks": partial(_of_kind, "attack")}
"""The tables of this module, by name."""
