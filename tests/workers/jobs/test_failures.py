"""Jobs whose data was moved or removed after the submission; databases and drivers that are lost."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkValueError
from pyspark.errors.exceptions.captured import ArithmeticException
from pyspark.sql.classic.dataframe import DataFrame
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus
from service.store.publication import Ending
from service.store.session import Database
from tests.support import lifecycle
from tests.support.bench import Bench
from tests.support.databases import PostgresDatabases
from tests.support.object_store import ObjectStore
from workers.jobs.attempt import Attempt
from workers.jobs.outcome import HandBack, LeaseLost, verdict_of

pytestmark = pytest.mark.spark

SQL = "SELECT category, COUNT(*) AS n FROM orders GROUP BY category"


def job_on(path: str) -> dict[str, object]:
    return {"tables": {"orders": {"format": "parquet", "path": path}}, "sql": SQL}


@pytest.fixture
def orders_in_a_bucket(object_store: ObjectStore) -> ObjectStore:
    sink = io.BytesIO()
    pq.write_table(pa.table({"category": ["a", "b"]}), sink)
    object_store.make_bucket("failures")
    object_store.put("failures", {"orders/1.parquet": sink.getvalue(), "orders/2.parquet": b"PAR1 no more"})
    return object_store


def configured(bench: Bench) -> Bench:
    """A worker like this one, with the settings of now."""
    return type(bench)(Settings(), bench.database, bench.driver)


def end_of(bench: Bench, path: str) -> str:
    """The code with which a job on the table at `path` fails."""
    job_id = bench.submit(job_on(path))
    bench.runner.run(job_id)
    job = bench.job(job_id)
    assert job.status == "FAILED"
    assert job.error is not None
    return str(job.error["code"])


def test_a_root_by_its_uri(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", (bench.settings.state_dir / "data").as_uri())
    bench = configured(bench)
    job_id = bench.submit(job_on("orders"))
    bench.runner.run(job_id)
    assert bench.job(job_id).status == "SUCCEEDED"


def test_objects_that_are_missing_or_broken_or_that_spark_cannot_reach(
    bench: Bench, orders_in_a_bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = orders_in_a_bucket
    for name, value in store.variables("s3a://failures").items():
        monkeypatch.setenv(name, value)
    bench = configured(bench)
    assert end_of(bench, "orders/2.parquet") == "corrupt_file"
    # The file is found and its columns are read: Spark alone lacks the jar.
    assert end_of(bench, "orders/1.parquet") == "unsupported_filesystem"
    store.delete("failures", "orders/1.parquet", "orders/2.parquet")
    assert end_of(bench, "orders/1.parquet") == "path_not_found"
    assert end_of(bench, "orders") == "path_not_found"


def test_a_store_that_does_not_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "s3a://failures")
    monkeypatch.setenv("EVENKEEL_DATA_S3_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("EVENKEEL_DATA_STORE_ATTEMPTS", "1")
    assert end_of(configured(bench), "orders") == "storage_unavailable"


class _Gone:
    """What PySpark asks a JVM for that is no more."""

    def schema(self) -> object:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def test_what_pyspark_makes_of_a_driver_that_is_just_ending_is_its_loss(bench: Bench) -> None:
    taken = lifecycle.claim(bench.database, lifecycle.insert(bench.database))
    attempt = Attempt(taken, deadline=60.0)
    with pytest.raises(PySparkValueError) as caught:
        _ = DataFrame(_Gone(), bench.driver.root).schema
    # Its sockets are closed, and its process is about to be gone.
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"]) as process:
        attempt.driver = replace(bench.driver, process=process)
        assert verdict_of(caught.value, attempt) == HandBack(AttemptStatus.CRASHED, problems.driver_lost(taken.worker))


class _OfEndedJvm:
    """A Java object of a JVM that no longer answers."""

    def __getattr__(self, name: str) -> object:
        raise Py4JNetworkError("Answer from Java side is empty")


def test_an_error_whose_jvm_ends_before_it_is_asked_for_the_cause_is_the_loss_of_the_driver(bench: Bench) -> None:
    taken = lifecycle.claim(bench.database, lifecycle.insert(bench.database))
    attempt = Attempt(taken, deadline=60.0)
    error = ArithmeticException("[DIVIDE_BY_ZERO] Division by zero.", "stack trace")
    error._origin = _OfEndedJvm()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"]) as process:
        attempt.driver = replace(bench.driver, process=process)
        assert verdict_of(error, attempt) == HandBack(AttemptStatus.CRASHED, problems.driver_lost(taken.worker))


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        ("INSERT INTO leaders VALUES (repeat('x', 33), 'me', 1)", JobStatus.FAILED),
        ("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)", None),
    ],
)
def test_what_the_database_cannot_store_is_no_lost_lease(
    postgres_databases: PostgresDatabases, statement: str, verdict: JobStatus | None
) -> None:
    with postgres_databases.new() as url, closing(Database(url)) as database:
        taken = lifecycle.claim(database, lifecycle.insert(database))
        with pytest.raises(DBAPIError) as caught, database.write() as session:
            session.execute(text(statement))
    found = verdict_of(caught.value, Attempt(taken, deadline=60.0))
    if verdict is None:
        assert found == LeaseLost()
    else:
        assert found == Ending(verdict, problems.internal_error(taken.job_id, taken.fence))
