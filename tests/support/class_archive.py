"""An archive of Spark's loaded classes, with which a JVM starts in half the time.

It is an application class-data-sharing archive, which Java 17 and later can write (JEP 350). It is created once for
each version of pyspark and Java, which takes about 20 seconds, and stored in pytest's cache. A JVM ignores an archive
that does not fit.

`python -m tests.support.class_archive ARCHIVE` creates it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_SECONDS = 300


def class_archive(directory: Path) -> Path:
    """Returns the archive in `directory`; creates it if missing. Concurrent test processes wait for one of them."""
    archive = directory / f"{_fingerprint()}.jsa"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _replace_archive(archive)
    return archive


def _replace_archive(archive: Path) -> None:
    for old in archive.parent.glob("*.jsa"):
        old.unlink(missing_ok=True)
    new = archive.with_suffix(".new")
    command = [sys.executable, "-m", "tests.support.class_archive", str(new)]
    made = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if made.returncode or not new.exists():
        raise RuntimeError(f"no archive of Spark's classes was written:\n{made.stdout[-2000:]}{made.stderr[-2000:]}")
    new.replace(archive)


def reading(archive: Path) -> str:
    """Returns the options of a JVM that maps `archive`, without warnings about an archive that does not fit."""
    return f"-XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr"


def _fingerprint() -> str:
    """Returns a hash of what the archive depends on: the jars with their path, and Java."""
    spec = find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec and spec.origin else _ROOT
    java = os.environ.get("JAVA_HOME") or shutil.which("java") or ""
    version = subprocess.run([_java(), "-version"], capture_output=True, text=True).stderr
    parts = [str(jars), str(jars.stat().st_mtime_ns), java, version, os.environ.get("JDK_JAVA_OPTIONS", "")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def _make(archive: Path) -> None:
    """Starts a driver, runs a few queries of many kinds, and lets the JVM write its classes when it exits."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as scratch:
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.extraJavaOptions", f"-XX:ArchiveClassesAtExit={archive}")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", scratch)
            .config("spark.sql.warehouse.dir", scratch)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.ui.port", "0")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        table = f"{scratch}/table"
        session.range(1000).selectExpr("id % 7 AS k", "id AS v", "CAST(id AS STRING) AS s").write.parquet(table)
        rows = session.read.parquet(table)
        grouped = rows.groupBy("k").agg({"v": "sum", "s": "count"}).join(session.range(7).toDF("k"), "k")
        grouped.orderBy("k").collect()
        rows.selectExpr("COUNT(DISTINCT v)", "COUNT(DISTINCT s)").collect()
        gateway = SparkContext._gateway
        session.stop()
    assert gateway is not None
    # The JVM exits and writes the archive when its standard input is closed.
    gateway.proc.stdin.close()
    gateway.proc.wait(_TIMEOUT_SECONDS)


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
