"""The option and the fixtures of the runner of SQL cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sql.case_files import Case, rewritten
from tests.sql.checks import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.sql.spark_checks import SqlInSpark


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--write`: the files of cases get what the cases give."""
    parser.addoption("--write", action="store_true", help="write what the SQL cases give into their files")


class Recorder:
    """Compares what cases give with what their files expect, or collects it, to write it into the files."""

    def __init__(self, *, writes: bool) -> None:
        self.writes = writes
        self._found: dict[Path, dict[int, Outcome]] = {}

    def check(self, case: Case, got: Outcome, name: str = "") -> None:
        """Asserts that the case gives what its file expects."""
        if self.writes:
            self._found.setdefault(case.path, {})[case.line] = got
            return
        expected = case.argument, case.expected
        assert got == expected, "\n".join(
            [f"{case.path}:{case.line} {name}", case.sql, "expected:", *_lines(expected), "got:", *_lines(got)]
        )

    def write(self) -> None:
        """Writes what was kept into the files."""
        for path, found in self._found.items():
            path.write_text(rewritten(path, found), encoding="utf-8")


def _lines(outcome: Outcome) -> list[str]:
    argument, lines = outcome
    return [f"  {line}" for line in (argument, *lines) if line]


@pytest.fixture(scope="session")
def recorder(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """The recorder of this test run."""
    found = Recorder(writes=bool(request.config.getoption("--write", False)))
    yield found
    found.write()


@pytest.fixture(scope="session")
def sql_in_spark(spark: SparkSession) -> Iterator[SqlInSpark]:
    """Runs cases in the session of this test process."""
    from tests.sql.spark_checks import sql_in_spark

    with sql_in_spark(spark) as found:
        yield found
