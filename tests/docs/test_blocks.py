"""The code blocks of README.md and docs/: each is tested, and each job in them is accepted or refused as stated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from service.cli.demo_data import write_tables
from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.contract.tables import StreamTable, TableSource
from service.data.roots import DirectoryRoot
from service.jobs.check_job import check_job
from service.sql.ddl import parse_schema
from tests.support import documents
from tests.support.documents import TESTED_LANGUAGES, Block, blocks

JOBS = blocks("job")
STREAM = parse_schema("uid BIGINT, page STRING, ts TIMESTAMP, origin STRING, at TIMESTAMP", "/")
"""The columns of every stream of posted rows that the documents use."""
_REPORTS = 10_000


def test_every_block_says_how_it_is_tested() -> None:
    unmarked = [one.place for one in blocks() if one.language in TESTED_LANGUAGES and not one.kind]
    assert unmarked == []
    assert {one.kind for one in blocks() if one.kind} <= {
        *("executed", "not executed", "job"),
        *("command", "commands", "program"),
    }


def test_lines_of_a_command_are_marked() -> None:
    for one in blocks("executed", "commands"):
        if one.language == "console":
            for command, _ in documents.steps(one.text):
                assert one.text.count(f"$ {command}".replace("\n", "\n> ")) >= 1, one.place


def test_names_are_unique() -> None:
    named = Counter(f"{one.kind}: {one.name}" for one in blocks("executed", "command", "commands", "program"))
    assert [name for name, times in named.items() if times > 1] == []


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the demo's tables."""
    directory = tmp_path_factory.mktemp("data")
    write_tables(directory, _REPORTS)
    return directory


@pytest.mark.not_quick
@pytest.mark.parametrize("block", JOBS, ids=[one.place for one in JOBS])
def test_job_is_accepted_or_refused_as_stated(block: Block, root: Path, tmp_path: Path) -> None:
    assert check_code(yaml.safe_load(block.text), root, tmp_path) == block.name


def check_code(document: object, root: Path, other_root: Path) -> str:
    """Returns the code with which the service refuses a job, or `valid`.
    Missing files are created in the data root `other_root`, without rows.
    """
    try:
        spec = JobSpec.model_validate(document)
        for table in spec.tables.values():
            if isinstance(table, TableSource) and not (root / table.path).exists():
                write_header(table, other_root)
        streams = {table.stream: STREAM for table in spec.tables.values() if isinstance(table, StreamTable)}
        check_job(spec, (DirectoryRoot(root), DirectoryRoot(other_root)), streams)
    except SpecError as error:
        return error.code
    return "valid"


def write_header(table: TableSource, root: Path) -> None:
    """Creates a file of a table, with the header line that the table declares, or empty."""
    path = root / table.path
    file = path / f"part.{table.format}" if table.path.endswith("/") else path
    file.parent.mkdir(parents=True, exist_ok=True)
    names = parse_schema(table.declared_schema or "", "/").names if table.options.header else ()
    file.write_text(table.options.delimiter.join(names) + "\n" * bool(names), encoding="utf-8")
