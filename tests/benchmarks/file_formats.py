"""Compares the engine's time to read and aggregate files of each format with that of plain Spark's reader.

    python tests/benchmarks/file_formats.py [--data DIR] [--rows N] [--rounds 5] [--formats NAME;…] [--json FILE]

Writes the same rows in each format (cached below `--data`, some GB), and asks both sides in turn: once to warm up, when
their answers are compared, and then in rounds, each of which begins with the other side. Both run in one driver of two
cores, and have the same number of shuffle partitions. Plain Spark gets the same schema and options.

The engine runs as on a worker: it finds the files, checks them, reads their columns, samples them and plans. The
statistics of files, and Spark's plans of their scans, are made again in each round (`first`), or known from the round
before (`again`).

Spark's distribution has no reader for Avro. It is compared with what a user would write: `fastavro.reader` in
`mapInArrow`, one task a file, without limits and checks.

Prints a Markdown table and writes all figures as JSON. The figures depend on the machine and its load.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

import fastavro
import polars as pl
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.tables import TableSource
from service.data.file_format import check_all_blocks
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.data.table_resolution import resolve_table
from service.sql.compile import compile_job
from tests.support.machine import machine
from workers.engine.spark.engine import Engine
from workers.engine.spark.scan_cache import ScanCache
from workers.engine.spark.sources import TableInput, reader_options
from workers.engine.spark.statistics_cache import StatisticsCache

CORES = 2
FILES = 8
SQL = "SELECT k, COUNT(*) AS n, SUM(v) AS s, MAX(p) AS p, SUM(LENGTH(name)) AS l FROM t GROUP BY k"
"""Reads every column that all formats have."""
COLUMNS = "k INT, v BIGINT, p DOUBLE, name STRING"
SIDES = ("first", "again", "spark")


@dataclass(frozen=True)
class Format:
    """A format: what a job names of it, and how the files are written."""

    name: str
    table: dict[str, Any]
    write: Callable[[DataFrame, Path], None]


def _spark_writer(format_: str, *partitions: str, **options: str) -> Callable[[DataFrame, Path], None]:
    def write(frame: DataFrame, path: Path) -> None:
        frame.write.format(format_).options(**options).partitionBy(*partitions).save(f"file://{path}")

    return write


def _write_xml(frame: DataFrame, path: Path) -> None:
    frame.write.format("xml").option("rowTag", "row").save(f"file://{path}")


def _write_delta(frame: DataFrame, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        plain = Path(directory) / "t"
        frame.write.parquet(f"file://{plain}")
        for file in sorted(plain.glob("*.parquet")):
            write_deltalake(path, pl.read_parquet(file).to_arrow(), mode="append")


def _write_avro(frame: DataFrame, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        plain = Path(directory) / "t"
        frame.write.parquet(f"file://{plain}")
        path.mkdir()
        for file in sorted(plain.glob("*.parquet")):
            pl.read_parquet(file).write_avro(path / f"{file.stem}.avro", compression="deflate")


FORMATS = (
    Format("Parquet", {"format": "parquet"}, _spark_writer("parquet")),
    Format("Parquet in 10 partitions", {"format": "parquet"}, _spark_writer("parquet", "day")),
    Format("ORC", {"format": "orc"}, _spark_writer("orc")),
    Format("Delta", {"format": "delta"}, _write_delta),
    Format("CSV", {"format": "csv", "schema": COLUMNS, "header": True}, _spark_writer("csv", header="true")),
    Format(
        "CSV, gzip",
        {"format": "csv", "schema": COLUMNS, "header": True},
        _spark_writer("csv", header="true", compression="gzip"),
    ),
    Format("JSON lines", {"format": "json", "schema": COLUMNS}, _spark_writer("json")),
    Format("XML", {"format": "xml", "schema": COLUMNS, "options": {"row_tag": "row"}}, _write_xml),
    Format("Avro", {"format": "avro"}, _write_avro),
)


@dataclass
class Figures:
    """The seconds of each side, in the order of the rounds."""

    rows: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def ratio(self, side: str) -> float:
        """Returns the time of a side as a multiple of plain Spark's: the median of the rounds' ratios."""
        pairs = zip(self.seconds[side], self.seconds["spark"], strict=True)
        return statistics.median(own / plain for own, plain in pairs)


class Sides:
    """Both sides for one format, whose files are below `root`."""

    def __init__(self, session: SparkSession, format_: Format, root: Path) -> None:
        self._session, self._root = session, root
        self._known, self._scans, self._first = StatisticsCache(), ScanCache(session), ScanCache(session)
        given = TableSource.model_validate({**format_.table, "path": "t"})
        self._source = resolve_table("t", given, (root,)).source
        self._ddl = ", ".join(f"{one.name} {one.type}" for one in self._tables()["t"].schema.fields)

    def ask(self, side: str) -> list[Any]:
        """Runs the query and returns its rows."""
        if side == "spark":
            frame = self._plain()
        else:
            if side == "first":
                # The session of the cache remains, as on a worker.
                self._first._plans.clear()
            known = (self._known, self._scans) if side == "again" else (StatisticsCache(), self._first)
            frame = self._engine(*known)
        return sorted(frame.collect())

    def _tables(self) -> dict[str, TableInput]:
        files = find_table_files("t", self._source, (self._root,))
        check_all_blocks("t", self._source, files)
        return {"t": TableInput(self._source, files, read_schema("t", self._source, files))}

    def _engine(self, known: StatisticsCache, scans: ScanCache) -> DataFrame:
        tables = self._tables()
        spec = JobSpec.model_validate({"tables": {"t": self._source}, "sql": SQL})
        query = compile_job(spec, {"t": tables["t"].schema}, is_accepted=True)
        return Engine(self._session, CORES, known, scans).plan(query, tables, JobSettings()).frame

    def _plain(self) -> DataFrame:
        path = f"file://{self._root / 't'}"
        kind = self._source.kind
        if kind == "avro":
            files = sorted((self._root / "t").glob("*.avro"))
            paths = self._session.sparkContext.parallelize([(str(file),) for file in files], len(files))
            frame = self._session.createDataFrame(paths, "path STRING").mapInArrow(_read_avro, self._ddl)
        else:
            options = reader_options(self._source)
            # The default of Spark: with it, each header is not compared with the schema.
            options.pop("enforceSchema", None)
            reader = self._session.read.format("parquet" if kind == "delta" else kind.value).options(**options)
            frame = reader.schema(self._ddl).load(path)
        frame.createOrReplaceTempView("t")
        return self._session.sql(SQL)


def _read_avro(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            with Path(path).open("rb") as stream:
                rows = []
                for row in fastavro.reader(stream):
                    rows.append(row)
                    if len(rows) == 8192:
                        yield _arrow(rows)
                        rows = []
                if rows:
                    yield _arrow(rows)


def _arrow(rows: list[Any]) -> pa.RecordBatch:
    types = {"k": pa.int32(), "v": pa.int64(), "p": pa.float64(), "name": pa.string()}
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(types.items())))


def measure(session: SparkSession, format_: Format, data: Path, rows: int, rounds: int) -> Figures:
    """Writes the files unless they exist, and returns the times. Raises ValueError if the answers differ."""
    root = data / f"{format_.name.replace(' ', '-').replace(',', '')}-{rows}"
    if not (root / "done").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        day = ", CAST(id % 10 AS INT) AS day" if "partitions" in format_.name else ""
        columns = "CAST(id % 100 AS INT) AS k, id AS v, id / 8D AS p, CONCAT('name ', id % 1000) AS name"
        format_.write(session.sql(f"SELECT {columns}{day} FROM RANGE(0, {rows}, 1, {FILES})"), root / "t")
        (root / "done").touch()
    sides = Sides(session, format_, root)
    answers = [sides.ask(side) for side in SIDES]
    if any(answer != answers[0] for answer in answers):
        raise ValueError(f"{format_.name}: the answers differ")
    figures = Figures(rows)
    for number in range(rounds):
        for side in SIDES if number % 2 else reversed(SIDES):
            began = perf_counter()
            sides.ask(side)
            figures.seconds[side].append(perf_counter() - began)
    return figures


def line(name: str, figures: Figures) -> str:
    """Returns a line of the table."""
    medians = {side: statistics.median(seconds) for side, seconds in figures.seconds.items()}
    times = " | ".join(f"{medians[side]:.2f} s" for side in ("spark", "first", "again"))
    ratios = " | ".join(f"{figures.ratio(side):.2f}x" for side in ("first", "again"))
    speed = figures.rows / medians["first"] / 1e6
    return f"| {name} | {figures.rows / 1e6:g} M | {times} | {ratios} | {speed:.1f} M |\n"


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-file-formats")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default="", help="names, separated by semicolons; all of them by default")
    parser.add_argument("--memory", default="4g", help="of Spark's driver")
    parser.add_argument("--json", type=Path, default=Path("file_formats.json"))
    arguments = parser.parse_args()
    chosen = arguments.formats.split(";") if arguments.formats else [one.name for one in FORMATS]
    arguments.data.mkdir(parents=True, exist_ok=True)
    # As a worker does.
    sys.setswitchinterval(0.001)
    session = _session(arguments.data, arguments.memory)
    sys.stdout.write(
        "| format | rows | plain Spark | first run | again | ratio, first | ratio, again | rows/s, first |\n"
    )
    sys.stdout.write("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
    found = {}
    for format_ in (one for one in FORMATS if one.name in chosen):
        figures = measure(session, format_, arguments.data, arguments.rows, arguments.rounds)
        found[format_.name] = {"rows": figures.rows, "seconds": figures.seconds}
        sys.stdout.write(line(format_.name, figures))
        sys.stdout.flush()
        arguments.json.write_text(json.dumps({"machine": machine(), "formats": found}, indent=2) + "\n", "utf-8")
    session.stop()


def _session(data: Path, memory: str) -> SparkSession:
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("evenkeel-benchmark")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", memory)
        .config("spark.local.dir", str(data / "local"))
        .config("spark.sql.warehouse.dir", str(data / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(2 * CORES))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


if __name__ == "__main__":
    main()
