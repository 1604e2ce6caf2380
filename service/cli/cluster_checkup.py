"""What `evenkeel doctor` finds out about the Spark cluster, from a worker's driver in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from service.cli.checkup import Finding, Level
from service.cli.configuration import child_environment
from service.settings import Settings
from service.spark_properties import SparkPropertiesError, read_properties

_PROBE = (sys.executable, "-P", "-m", "workers.cluster_probe")
_BESIDE_WAITING_SECONDS = 240.0
"""For the driver's start, a few small jobs and the end, on a machine that is busy."""


def check_properties(settings: Settings) -> list[Finding]:
    """Whether the operator's Spark properties can be used; nothing where there are none."""
    path = settings.spark.properties_file
    if path is None:
        return []
    try:
        found = read_properties(path)
    except SparkPropertiesError as error:
        return [Finding("Spark properties", Level.FAIL, str(error), "Correct the file; a worker does not start so.")]
    return [Finding("Spark properties", Level.OK, f"{len(found)} in {path}")]


def check_cluster(settings: Settings, environment: Mapping[str, str], command: Sequence[str] = _PROBE) -> list[Finding]:
    """Takes executors as a worker does, tries results, data roots and Python on them, and gives them back.

    Nothing in local mode. Takes as long as the cluster and the start of Spark do.
    """
    if settings.spark.is_local:
        return []
    seconds = settings.spark.executor_wait_seconds + _BESIDE_WAITING_SECONDS
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command,
            env=child_environment(settings, environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [_failed(f"the check did not end within {seconds:g} s")]
    lines = done.stdout.strip().splitlines()
    try:
        return [Finding(**{**found, "level": Level(found["level"])}) for found in json.loads(lines[-1])]
    except (IndexError, ValueError, TypeError, KeyError):
        said = (done.stderr or done.stdout).strip().splitlines()
        return [_failed(f"the check ended with {done.returncode}: {said[-1] if said else 'it said nothing'}")]


def _failed(what: str) -> Finding:
    return Finding("cluster", Level.FAIL, what, f"Run {' '.join(_PROBE[1:])} by hand: it says more.")
