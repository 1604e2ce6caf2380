"""A worker's parts around the suite's Spark session, with a database and data of their own."""

from __future__ import annotations

from subprocess import Popen
from typing import TYPE_CHECKING

import pytest

from service.config.settings import Settings
from service.contract.enums import Mode
from service.store import streaming_jobs
from service.store.attempts import Claim
from service.store.session import Database
from tests.support import lifecycle
from tests.support.bench import Bench
from tests.support.tables import write_endless, write_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from workers.driver.driver import Driver


@pytest.fixture(scope="session")
def driver(spark: SparkSession) -> Driver:
    """The suite's Spark session as the workers see it."""
    from pyspark import SparkContext

    from workers.driver.driver import Driver
    from workers.driver.pools import TenantPools
    from workers.engine.spark.monitor import SparkMonitor

    context = spark.sparkContext
    gateway = SparkContext._gateway
    assert gateway is not None
    process = gateway.proc
    assert isinstance(process, Popen)
    monitor, pools = SparkMonitor(context), TenantPools(context)
    return Driver(spark, context, process, slots=2, shuffle_partitions=4, monitor=monitor, pools=pools)


@pytest.fixture
def bench(settings: Settings, sqlite_database: Database, driver: Driver) -> Bench:
    """Tables `orders/`, `users/` and `one_key/`, and a worker that no thread of its own drives."""
    data = settings.state_dir / "data"
    data.mkdir(parents=True)
    write_orders(data)
    write_endless(data)
    return Bench(settings, sqlite_database, driver)


@pytest.fixture
def held(database: Database) -> Claim:
    """The continuous job job-1, whose stream worker w1 has opened."""
    lifecycle.insert(database, "job-1", timeout_ms=0, mode=Mode.CONTINUOUS)
    claim = lifecycle.claim(database, "job-1", lease_ms=60_000)
    with database.write() as session:
        streaming_jobs.open_stream(session, claim, database.now(session))
    return claim
