"""Files that change between the planning of a job and the end of its run, on real Spark: an error, never a mixture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from service.config.settings import Settings
from service.contract.enums import JobStatus
from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.files import find_table_files
from service.data.roots import StoreUnavailableError, roots_of
from service.sql.types.data_types import BIGINT, Field, Schema
from service.store.attempts import Claim
from service.store.tables import JobRow
from tests.support.bench import Bench
from tests.support.object_store import running_object_store
from workers.engine.plan.nodes import Scan, Union
from workers.engine.spark.engine import Engine, PlannedQuery, WrittenResult
from workers.engine.spark.sources import TableInput
from workers.jobs.attempt import Attempt
from workers.jobs.planning import same_files

pytestmark = pytest.mark.spark

Change = Callable[[Path], None]
COUNT = "SELECT k, COUNT(*) AS n FROM t GROUP BY k"
TWICE = "SELECT a.k, COUNT(*) AS n FROM t a JOIN t b ON a.k = b.k GROUP BY a.k"
BRANCHES = "SELECT COUNT(DISTINCT k) AS k, COUNT(DISTINCT v) AS v FROM t"


def write(path: Path, keys: Sequence[int]) -> None:
    """A file of these keys, in the format of its name, in its place."""
    rows = [{"k": key, "v": key % 7} for key in keys]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows, pa.schema({"k": pa.int64(), "v": pa.int64()})), path)
    elif path.suffix == ".csv":
        path.write_text("".join(f"{row['k']},{row['v']}\n" for row in rows))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def spec(bench: Bench, format_: str, sql: str = COUNT, **more: Any) -> dict[str, Any]:
    """A job over a table `t` of two files with 100 rows of key 1 each, which are written here."""
    directory = bench.settings.state_dir / "data" / "t"
    directory.mkdir()
    for number in range(2):
        write(directory / f"{number}.{format_}", [1] * 100)
    schema = {} if format_ == "parquet" else {"schema": "k BIGINT, v BIGINT"}
    return {"tables": {"t": {"format": format_, "path": "t/", **schema}}, "sql": sql, **more}


def written_in_place(path: Path) -> None:
    write(path, [2] * 150)


def of_the_same_size(path: Path) -> None:
    write(path, [2] * 100)


def shortened(path: Path) -> None:
    write(path, [2] * 10)


def renamed_over(path: Path) -> None:
    aside = path.with_name(f".{path.name}")
    write(path.with_name(f"aside{path.suffix}"), [2] * 100)
    path.with_name(f"aside{path.suffix}").rename(aside)
    aside.rename(path)


def removed(path: Path) -> None:
    path.unlink()


def before_run(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """The change happens once the query is planned."""
    execute = Engine.execute

    def changed(engine: Engine, planned: PlannedQuery, directory: Path) -> WrittenResult:
        change()
        return execute(engine, planned, directory)

    monkeypatch.setattr(Engine, "execute", changed)


def after_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """The change happens before the result is published."""
    execute = Engine.execute

    def changed(engine: Engine, planned: PlannedQuery, directory: Path) -> WrittenResult:
        written = execute(engine, planned, directory)
        change()
        return written

    monkeypatch.setattr(Engine, "execute", changed)


def before_statistics(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """The change happens once the files are found, before anything is read of them."""
    plan = Engine.plan

    def changed(engine: Engine, *given: Any, **named: Any) -> PlannedQuery:
        change()
        return plan(engine, *given, **named)

    monkeypatch.setattr(Engine, "plan", changed)


def failed(bench: Bench, job_id: str) -> dict[str, Any]:
    """The error of a job whose files changed, of which nothing was kept."""
    job = bench.job(job_id)
    assert job.error is not None, job.status
    assert (job.status, job.error["code"]) == (JobStatus.FAILED, "files_changed")
    assert job.error["errors"][0]["pointer"] == "/tables/t/path"
    assert [path for path in bench.settings.results_dir.rglob("*") if path.is_file() and job_id in str(path)] == []
    return job.error


@pytest.mark.withstands(
    "a file changes while a job reads it",
    how="a Parquet, CSV or JSON file is written, replaced or removed after listing, after planning, or after the last "
    "task",
    times=13,
    guaranteed="`files_changed` names the file, and nothing of the run is stored",
)
@pytest.mark.parametrize(
    ("format_", "when", "change"),
    [
        ("parquet", before_statistics, written_in_place),
        ("parquet", before_run, of_the_same_size),
        ("parquet", before_run, shortened),
        ("parquet", before_run, removed),
        ("parquet", after_reading, renamed_over),
        ("parquet", after_reading, removed),
        ("csv", before_statistics, renamed_over),
        ("csv", before_run, written_in_place),
        ("csv", before_run, of_the_same_size),
        ("csv", after_reading, removed),
        ("json", before_statistics, shortened),
        ("json", before_run, renamed_over),
        ("json", before_run, written_in_place),
    ],
)
def test_a_file_that_changes_is_named(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    format_: str,
    when: Callable[[pytest.MonkeyPatch, Callable[[], None]], None],
    change: Change,
) -> None:
    job_id = bench.submit(spec(bench, format_))
    when(monkeypatch, lambda: change(bench.settings.state_dir / "data" / "t" / f"1.{format_}"))
    bench.runner.run(job_id)
    happened = "was removed" if change is removed else "has changed"
    assert f"The file '1.{format_}' of the table 't' {happened}" in failed(bench, job_id)["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["parquet", "csv", "json"])
@pytest.mark.parametrize("change", [removed, shortened])
def test_a_file_that_changes_before_its_statistics_are_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, format_: str, change: Change
) -> None:
    job_id = bench.submit(spec(bench, format_))
    before_statistics(monkeypatch, lambda: change(bench.settings.state_dir / "data" / "t" / f"1.{format_}"))
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["status"]) == (JobStatus.FAILED, 422)
    assert job.error["code"] == ("path_not_found" if change is removed else "files_changed")
    assert f"1.{format_}" in job.error["detail"]


@pytest.mark.parametrize("sql", [TWICE, BRANCHES])
def test_a_table_that_a_plan_reads_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    settings = {"distinct_method": "branches"} if sql == BRANCHES else {}
    job_id = bench.submit(spec(bench, "csv", sql, settings=settings))
    before_run(monkeypatch, lambda: renamed_over(bench.settings.state_dir / "data" / "t" / "0.csv"))
    bench.runner.run(job_id)
    failed(bench, job_id)


def test_files_that_are_added_and_tables_that_are_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bench.settings.state_dir / "data"
    given = spec(bench, "parquet")
    given["tables"]["unused"] = {"format": "parquet", "path": "orders/"}
    job_id = bench.submit(given)

    def change() -> None:
        write(data / "t" / "2.parquet", [3])
        write(data / "orders" / "part-0.parquet", [3])

    before_run(monkeypatch, change)
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert (job.status, job.error, job.result_rows) == (JobStatus.SUCCEEDED, None, 1)


def test_a_job_that_was_cut_short_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = bench.submit(spec(bench, "csv", limits={"failure_retries": 1}))
    with monkeypatch.context() as patched:
        before_run(patched, lambda: written_in_place(bench.settings.state_dir / "data" / "t" / "0.csv"))
        bench.runner.run(job_id)
    assert bench.job(job_id).status == JobStatus.QUEUED
    with bench.database.write() as session:
        session.execute(update(JobRow).values(next_run_at=None))
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert (job.status, job.error, job.result_rows) == (JobStatus.SUCCEEDED, None, 2)


@pytest.fixture
def unanswered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, TableInput]]:
    """The table `a` in a store that does not answer any more, and the table `b` in a directory."""
    source = TableSource.model_validate({"format": "csv", "path": "t", "schema": "k BIGINT"})
    (tmp_path / "data" / "t").mkdir(parents=True)
    (tmp_path / "data" / "t" / "0.csv").write_text("1\n")
    files = {"b": find_table_files("b", source, [tmp_path / "data"])}
    with running_object_store(tmp_path) as server:
        server.make_bucket("bucket")
        server.put("bucket", {"t/0.csv": b"1"})
        for name, value in {**server.variables("s3a://bucket"), "EVENKEEL_DATA_STORE_ATTEMPTS": "1"}.items():
            monkeypatch.setenv(name, value)
        files["a"] = find_table_files("a", source, roots_of(Settings()))
    yield {name: TableInput(source, found, Schema((Field("k", BIGINT),))) for name, found in files.items()}
    roots_of.cache_clear()


def checked(tables: dict[str, TableInput], error: Exception | None = None) -> None:
    """Checks the tables after a run that raised the error, or none."""
    scans = [Scan(name, name, ((Field(f"{name}.k", BIGINT), "k"),)) for name in tables]
    claim = Claim("job-1", "default", "run", "a job", {}, 1, "w1", 0, 0, 1)
    with same_files(tables, Union(tuple(scans)), Attempt(claim, 0.0)):
        if error is not None:
            raise error


def test_a_store_that_does_not_answer_after_a_run_that_failed(unanswered: dict[str, TableInput]) -> None:
    with pytest.raises(ConnectionResetError, match="the driver was lost"):
        checked(unanswered, ConnectionResetError("the driver was lost"))
    with pytest.raises(StoreUnavailableError):
        checked(unanswered)
    (file,) = unanswered["b"].files.files
    assert isinstance(file, Path)
    file.write_text("12\n")
    with pytest.raises(SpecError, match=r"The file '0\.csv' of the table 'b' has changed"):
        checked(unanswered, ConnectionResetError("the driver was lost"))
