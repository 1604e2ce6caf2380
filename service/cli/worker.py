"""`evenkeel worker`: a Celery worker in this process's place."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.settings import Settings


@told_plainly
def worker() -> None:
    """Run a worker alone: it takes jobs from the queue and runs them on Spark."""
    from service.cli.broker import tell_broker_fault
    from service.cli.configuration import read_settings, without_client_key
    from service.cli.directories import prepare_directories
    from service.cli.migrate import require_schema
    from service.lifeline import die_with_parent

    die_with_parent()
    settings = read_settings()
    require_spark()
    require_properties(settings)
    prepare_directories(settings)
    require_schema(settings)
    tell_broker_fault(settings)
    command = worker_command(settings)
    os.execve(command[0], command, without_client_key(os.environ))  # noqa: S606 - no shell is wanted


def require_spark() -> None:
    """Raises CliError where a worker cannot run here: no pyspark, or no Java for it."""
    from service.java import JavaError, find_java

    if find_spec("pyspark") is None:
        raise CliError(
            "pyspark is not installed, and a worker needs it",
            "Install the extra: pip install 'evenkeel[worker]'",
            code=ExitCode.MISSING,
        )
    try:
        find_java(os.environ)
    except JavaError as error:
        raise CliError(error.message, error.advice, code=ExitCode.MISSING) from None


def require_properties(settings: Settings) -> None:
    """Raises CliError where the operator's Spark properties cannot be used, or are not the operator's to set."""
    from service.spark_properties import SparkPropertiesError, read_properties

    try:
        read_properties(settings.spark.properties_file)
    except SparkPropertiesError as error:
        raise CliError(str(error), "The README says which properties are free.", code=ExitCode.USAGE) from None


def worker_command(settings: Settings) -> tuple[str, ...]:
    """The command of a worker process. A threads pool, since all jobs of a worker share one JVM; no gossip and no
    mingle, since workers agree through the database."""
    return (
        *(sys.executable, "-P", "-m", "workers"),
        *("--pool", "threads", "--concurrency", str(settings.worker.concurrency)),
        *("--loglevel", settings.log.level, "--without-gossip", "--without-mingle"),
    )
