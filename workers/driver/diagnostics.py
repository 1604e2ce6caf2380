"""`python -P -m workers.driver.diagnostics`: checks the configured cluster as a worker would; JSON output for `doctor`.

Starts its own driver, requests executors as a worker does, and releases them. Prints a list of findings, each with
`name`, `level` (OK, WARN, FAIL), `detail` and `advice`, as the last line of its output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from service.config.processes import die_with_parent
from service.config.settings import Settings
from service.data.roots import DirectoryRoot, Root, StoreRoot, roots_of, s3a_properties
from workers.driver.cluster import SparkUnavailableError
from workers.driver.driver import Driver, fault_of_python, fault_of_reading
from workers.driver.session import SparkRuntime

_DEEPEST = 4
_DATA = "data on the cluster"
_PYTHON = "Python on the cluster"


def main() -> None:
    """Prints the findings. A failed check is a finding and does not change the exit code."""
    die_with_parent()
    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="evenkeel-probe-") as scratch:
        runtime = SparkRuntime(
            settings.spark, Path(scratch), settings.results_dir, properties=s3a_properties(settings.data)
        )
        try:
            findings = list(examine_cluster(settings, runtime.driver))
        finally:
            runtime.stop()
    sys.stdout.write("\n" + json.dumps(findings) + "\n")
    sys.stdout.flush()
    # Threads of a driver that could not be stopped must not delay the end of the process.
    os._exit(0)


def examine_cluster(settings: Settings, start: Callable[[], Driver]) -> Iterator[dict[str, str]]:
    """Yields findings about the cluster, the data roots and Python; only the first one if no driver starts."""
    try:
        driver = start()
    except SparkUnavailableError as error:
        # The workers of this installation may be the ones that use the cores.
        yield _finding("cluster", "WARN" if error.is_busy else "FAIL", error.code, error.message)
        return
    executors = driver.executors
    found = f"{executors.number} executors with {executors.cores} cores" if executors else "no executors"
    yield _finding("cluster", "OK", f"{settings.spark.master}: {found}, which share {settings.results_dir}")
    for root in roots_of(settings):
        yield _data_root(driver, root)
    fault = fault_of_python(driver.root)
    if fault is None:
        yield _finding(_PYTHON, "OK", "the same minor version as on this machine")
    else:
        yield _finding(
            _PYTHON,
            "WARN",
            fault,
            "No job runs Python on executors. To correct it nevertheless, install the workers' version of Python there "
            "and set EVENKEEL_SPARK_PYTHON to its path.",
        )


def _data_root(driver: Driver, root: Root) -> dict[str, str]:
    try:
        found = _some_file(root)
    except Exception as error:  # noqa: BLE001 - the check of the root itself reports the cause
        return _finding(_DATA, "FAIL", f"{_named(root)} cannot be listed: {type(error).__name__}", "See the data root.")
    if found is None:
        return _finding(_DATA, "WARN", f"{_named(root)} has no file to read", "Add a table and run this check again.")
    fault = fault_of_reading(driver.session_for_job(), *found)
    if fault is None:
        return _finding(_DATA, "OK", f"executors read {found[0]}")
    return _finding(
        _DATA,
        "FAIL",
        f"data_not_shared: executors cannot read {found[0]}: {fault}",
        "Mount the data root at the same path on the machines of all executors, readable by their user; for a store, "
        "give Spark its libraries and credentials in EVENKEEL_SPARK_PROPERTIES_FILE.",
    )


def _named(root: Root) -> str:
    return str(root.location) if isinstance(root, StoreRoot) else str(_directory(root))


def _directory(root: Path | DirectoryRoot) -> Path:
    return root.path if isinstance(root, DirectoryRoot) else root


def _some_file(root: Root) -> tuple[str, int] | None:
    """Returns the URI and the size of a small file not far below the root; None if there is none."""
    if isinstance(root, StoreRoot):
        return _smallest(_in_store(root, root.location.path, 0))
    return _smallest(_in_directory(_directory(root), 0))


def _smallest(found: Iterator[tuple[str, int]]) -> tuple[str, int] | None:
    few = [file for file, _ in zip(found, range(20), strict=False)]
    return min(few, key=lambda file: file[1], default=None)


def _in_directory(directory: Path, depth: int) -> Iterator[tuple[str, int]]:
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.startswith((".", "_")) or ":" in entry.name:
            continue
        if entry.is_file():
            yield f"file://{entry.path}", entry.stat().st_size
        elif entry.is_dir() and depth < _DEEPEST:
            yield from _in_directory(Path(entry.path), depth + 1)


def _in_store(root: StoreRoot, path: str, depth: int) -> Iterator[tuple[str, int]]:
    for child in root.store.children(path) or ():
        below = f"{path}/{child.name}" if path else child.name
        if child.name.startswith((".", "_")):
            continue
        if child.is_file:
            yield f"{root.location.store}/{below}", child.size
        elif child.is_directory and depth < _DEEPEST:
            yield from _in_store(root, below, depth + 1)


def _finding(name: str, level: str, detail: str, advice: str = "") -> dict[str, str]:
    return {"name": name, "level": level, "detail": detail, "advice": advice}


if __name__ == "__main__":
    main()
