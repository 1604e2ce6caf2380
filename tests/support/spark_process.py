"""Scenarios for the worker's Spark driver, each in its own process, because a process has only one PySpark state.

Run as `python -m tests.support.spark_process SCENARIO SCRATCH`. The last line of the output is the result as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.config.spark import SparkSettings
from service.store.attempts import Claim
from tests.support.clocks import ManualSeconds
from tests.support.processes import wait_for
from workers.driver.driver import Driver
from workers.driver.session import SparkRuntime
from workers.jobs.attempt import Attempt, RunningAttempts
from workers.process.watchdog import DriverWatch


def main() -> None:
    """Runs a scenario and stops everything that it started."""
    scenario, scratch = sys.argv[1], Path(sys.argv[2])
    further = scratch.with_name(f"{scratch.name}.conf")
    further.write_text("spark.hadoop.fs.s3a.secret.key hush # hush\n")
    settings = SparkSettings(master="local[2]", driver_memory="512m", properties_file=further)
    # The clock advances an hour with each read, so another start is always due.
    runtime = SparkRuntime(settings, scratch, clock=count(step=3600.0).__next__)
    scenarios = {
        "session": session,
        "hang": hang,
        "starts": starts,
        "late": late,
        "swept": swept,
        "orphan": orphan,
    }
    found = scenarios[scenario](runtime)
    runtime.stop()
    found["left_in_scratch"] = [path.name for path in scratch.glob("*")]
    _tell(found)


def session(runtime: SparkRuntime) -> dict[str, Any]:
    """Checks the session's restrictions, its addresses, cancellation by tag, and the new driver after a killed JVM."""
    driver = runtime.driver()
    one, two = driver.session_for_job(), driver.session_for_job()
    one.sql("CREATE TEMPORARY VIEW seen AS SELECT 1 AS a")
    found: dict[str, Any] = {
        "same_driver": runtime.driver() is driver,
        "further": driver.context.getConf().get("spark.hadoop.fs.s3a.secret.key"),
        "secret_in_title": "hush" in " ".join(psutil.Process(driver.process.pid).cmdline()),
        "time_zone": one.conf.get("spark.sql.session.timeZone"),
        "shuffle_partitions": one.conf.get("spark.sql.shuffle.partitions"),
        "views_of_the_other": [table.name for table in two.catalog.listTables()],
        "reflect": _error(one, "SELECT reflect('java.lang.System', 'nanoTime')"),
        "file": _error(one, "SELECT * FROM text.`/etc/hostname`"),
        "listens_on": sorted(
            {
                connection.laddr.ip.removeprefix("::ffff:")
                for connection in psutil.Process(driver.process.pid).net_connections()
                if connection.status == psutil.CONN_LISTEN
            }
        ),
        "left_by_shuffles": _left_by_shuffles(one),
        "scheduling": str(driver.context._jsc.sc().getPoolForName("default").get().schedulingMode()),
        "cancel": _cancel(driver),
        "labels_after": [
            driver.context.getLocalProperty("spark.scheduler.pool"),
            driver.context.getLocalProperty("spark.job.description"),
            sorted(driver.context.getJobTags()),
        ],
    }
    driver.kill()
    left = _files_of_spark()
    again = runtime.driver()
    found["left_by_killed"] = [len(left) > 0, sorted(left & _files_of_spark())]
    found["rows_after_kill"] = again.session_for_job().range(10).count()
    found["other_driver"] = again is not driver
    found["reasons"] = _reasons(runtime, driver, again)
    return found


def _left_by_shuffles(session: SparkSession) -> list[str]:
    """Returns the shuffle files after queries that succeeded or failed, once Spark had time to remove them."""
    groups = session.range(1000).selectExpr("id % 10 AS k").groupBy("k").count()
    groups.write.format("noop").mode("overwrite").save()
    with suppress(PySparkException):
        groups.selectExpr("raise_error(CAST(k AS STRING))").collect()
    place = Path(sys.argv[2])
    with suppress(AssertionError):
        wait_for("shuffle files to be removed", lambda: not list(place.rglob("shuffle_*")), 30)
    return sorted(path.name for path in place.rglob("shuffle_*"))


def _files_of_spark() -> set[str]:
    """Returns Spark's files and directories below the scratch directory. Each driver has its own names."""
    return {path.name for path in Path(sys.argv[2]).glob("*/local/*")}


def _reasons(runtime: SparkRuntime, lost: Driver, other: Driver) -> list[str | None]:
    """Returns the stop reasons of an attempt with each driver, if a job detects the loss before the watchdog."""
    running_attempts, left, unharmed = RunningAttempts(), Attempt(_claim(), 0.0), Attempt(_claim(), 0.0)
    left.driver, unharmed.driver = lost, other
    with running_attempts.holding(left), running_attempts.holding(unharmed):
        DriverWatch(runtime, running_attempts, 10.0).watch()
    return [left.reason, unharmed.reason]


def hang(runtime: SparkRuntime) -> dict[str, Any]:
    """Freezes a JVM (SIGSTOP): after the timeout, the driver and its attempts are lost."""
    driver = runtime.driver()
    running_attempts, clock = RunningAttempts(), ManualSeconds()
    watch = DriverWatch(runtime, running_attempts, 10.0, clock)
    attempt = Attempt(_claim(), 0.0)
    attempt.driver = driver
    with running_attempts.holding(attempt):
        watch.ping()
        watch.watch()
        os.kill(driver.process.pid, signal.SIGSTOP)
        pinging = threading.Thread(target=_ping, args=(watch,), daemon=True)
        pinging.start()
        clock.now += 10.0
        watch.watch()
        in_time = runtime.current is driver
        clock.now += 0.5
        watch.watch()
        once = runtime.current is driver
        watch.watch()
        pinging.join(10)
    return {
        "kept_in_time": in_time,
        "kept_once": once,
        "given_up": runtime.current is None,
        "reason": attempt.reason,
        "ping_returned": not pinging.is_alive(),
        "rows_after": runtime.driver().session_for_job().range(7).count(),
    }


def starts(runtime: SparkRuntime) -> dict[str, Any]:
    """Ends or freezes JVMs before the driver is ready: the waiting call fails, and the next step starts another."""
    found: dict[str, Any] = {}
    with _interrupted_start(runtime, signal.SIGKILL) as errors:
        pass
    found["killed"] = len(errors)
    clock = ManualSeconds()
    watch = DriverWatch(runtime, RunningAttempts(), 10.0, clock)
    with _interrupted_start(runtime, signal.SIGSTOP) as errors:
        watch.watch()
        clock.now += runtime.start_timeout_seconds
        watch.watch()
        found["given_up_in_time"] = runtime.starting is None
        clock.now += 0.5
        watch.watch()
    found["hung"] = len(errors)
    runtime.keep_ready()
    driver = runtime.driver()
    found["rows_after"] = driver.session_for_job().range(7).count()
    found["starting"] = runtime.starting
    runtime.discard(driver)
    with _interrupted_start(runtime, signal.SIGSTOP) as errors:
        runtime.stop()
    found["stopped"] = len(errors)
    found["left_running"] = [child.name() for child in psutil.Process().children(recursive=True)]
    return found


def late(runtime: SparkRuntime) -> dict[str, Any]:
    """Delays a start, with a slow `java -version`, until `stop` has given up waiting."""
    home = Path(sys.argv[2]).with_name("java")
    asked, may_go_on, launched = (home / name for name in ("asked", "go", "launched"))
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\n[ $1 = -version ] || {{ : > '{launched}'; exit 1; }}\n"
        f": > '{asked}'\nuntil [ -e '{may_go_on}' ]; do sleep 0.1; done\necho 'openjdk version \"17.0.1\"'\n"
    )
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)
    errors: list[Exception] = []
    thread = threading.Thread(target=_build, args=(runtime, errors), daemon=True)
    thread.start()
    wait_for("the question for the version", asked.exists)
    runtime.stop()
    waiting = thread.is_alive()
    may_go_on.touch()
    thread.join(60)
    return {"waiting": waiting, "errors": [str(error) for error in errors], "launched": launched.exists()}


def swept(runtime: SparkRuntime) -> dict[str, Any]:
    """Starts drivers after other workers removed the scratch directory and after Spark created it again without an
    owner. Java fails, so each start ends as soon as it has launched the JVM.
    """
    scratch = Path(sys.argv[2])
    home = scratch.with_name("java")
    launches, java = home / "launches", home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\n[ $1 = -version ] || {{ echo launched >> '{launches}'; exit 1; }}\n"
        "echo 'openjdk version \"17.0.1\"'\n"
    )
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)
    found: dict[str, Any] = {"launches": [], "owned": []}
    for is_made_again in (False, True, False):
        _build(runtime, [])
        found["launches"].append(len(launches.read_text().splitlines()))
        directories = list(scratch.iterdir())
        found["owned"].append([(directory / "owner.json").exists() for directory in directories])
        for directory in directories:
            shutil.rmtree(directory)
            if is_made_again:
                (directory / "local").mkdir(parents=True)
    return found


@contextmanager
def _interrupted_start(runtime: SparkRuntime, by: signal.Signals) -> Iterator[list[Exception]]:
    """Sends a signal to a JVM that has just started, and then yields what the waiting call raised."""
    errors: list[Exception] = []
    thread = threading.Thread(target=_build, args=(runtime, errors), daemon=True)
    thread.start()
    jvm = wait_for("a JVM", _starting_jvm, 30, every=0.005)
    os.kill(jvm, by)
    yield errors
    thread.join(60)
    assert not thread.is_alive()


def _build(runtime: SparkRuntime, errors: list[Exception]) -> None:
    try:
        # Does nothing before the first start. A caller that needs the driver gets the reason why there is none.
        runtime.keep_ready()
        runtime.driver()
    except Exception as error:  # noqa: BLE001 - PySpark has many
        errors.append(error)


def _starting_jvm() -> int | None:
    # Set once the JVM listens: PySpark's next request takes at least a second.
    gateway = SparkContext._gateway
    return None if gateway is None else int(gateway.proc.pid)


def orphan(runtime: SparkRuntime) -> dict[str, Any]:
    """Prints the JVM's process id and waits to be killed."""
    _tell({"jvm": runtime.driver().process.pid})
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _claim() -> Claim:
    return Claim("job-1", "default", "run", "a job", {}, 1, "w1", 0, 0, 1)


def _ping(watch: DriverWatch) -> None:
    # `watch` handles the failures of a loop's thread.
    with suppress(Py4JError, OSError):
        watch.ping()


def _tell(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _error(session: SparkSession, sql: str) -> str:
    try:
        session.sql(sql).collect()
    except PySparkException as error:
        return str(error)[:60]
    return "none"


def _has_tasks(driver: Driver) -> bool:
    try:
        return driver.monitor.progress("tag-1").tasks_total > 0
    except httpx.TimeoutException:
        # The first response of Spark's web server can take longer on a busy machine.
        return False


def _cancel(driver: Driver) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def run() -> None:
        rows = driver.session_for_job().range(2_000_000)
        with driver.labelled("tag-1", "tenant", "endless"):
            try:
                rows.crossJoin(rows.toDF("b")).where("id + b < -1").count()
            except Py4JError as error:
                found["error"] = type(error).__name__

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not _has_tasks(driver) and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.cancel("tag-1")
    thread.join(30)
    return {"error": found.get("error"), "ended": not thread.is_alive()}


if __name__ == "__main__":
    main()
