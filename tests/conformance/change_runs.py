"""Runs queries by changes without a streaming query of Spark: each mini-batch gets its rows as a DataFrame. Interrupts
mini-batches between the tasks of the state, and runs them again.

    python -m tests.conformance.change_runs [--queries 5000] [--seed N] [--first N] [--minutes 15] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.contract.tables import ADDING, REMOVING
from service.sql.compile import compile_job
from service.sql.resolve.bound import tables_of
from service.sql.types.data_types import STRING, Field, Schema
from tests.conformance.change_queries import QueryMaker
from tests.conformance.conftest import FACTS, facts
from tests.conformance.laboratory import in_spark
from tests.conformance.stream_runs import in_one_piece
from tests.support.rows import difference
from workers.engine.plan.builder import build
from workers.engine.streaming.changes import run as changes_run
from workers.engine.streaming.changes.plan import plan_changes
from workers.engine.streaming.changes.run import Changes, one_frame, source_scans
from workers.engine.streaming.changes.state_files import undo
from workers.engine.streaming.changes.steps import ChangePlan
from workers.engine.streaming.sources import OPERATION

BUCKETS = 2
_LARGE = 0.1
"""The share of mini-batches that are run as if they were large."""
_SMALL_ROWS = (5, 20_000, 20_000)
_REMOVING = 0.5
"""The share of queries over streams from which rows are removed."""
_LOGS = 0.3
"""The share of queries whose plan emits each change."""
_OP = (Field("op", STRING),)
_SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
}
_DDL = ", ".join(f"{one.name} {one.type}" for one in FACTS.fields)


class InterruptedRunError(Exception):
    """Stands for a process that ends between two tasks."""


@dataclass
class ChangesRun:
    """The mini-batches of one query over `streams`, and its result so far. `removes`: the column `op` of a row says
    whether it is added or removed. `is_log`: the plan emits each change.
    """

    session: SparkSession
    sql: str
    streams: tuple[str, ...]
    directory: Path
    removes: bool = False
    is_log: bool = False
    rows: dict[str, tuple[tuple[Any, ...], int]] = field(default_factory=dict)
    batches: int = 0

    def __post_init__(self) -> None:
        table = {"format": "parquet", "role": "stream", "operation": "op" if self.removes else None}
        tables = {name: {**table, "path": name} for name in self.streams}
        spec = JobSpec.model_validate({"mode": "incremental", "tables": tables, "sql": self.sql})
        query = compile_job(
            spec, dict.fromkeys(self.streams, Schema((*FACTS.fields, *_OP) if self.removes else FACTS.fields))
        )
        aliases = {table.alias: table.table for table in tables_of(query)}
        removing = frozenset(aliases) if self.removes else frozenset[str]()
        self.plan: ChangePlan = plan_changes(build(query), frozenset(aliases), removing, is_log=self.is_log)
        self._scans = source_scans(self.plan, frozenset(aliases))

    def run(self, changes: Mapping[str, DataFrame], random: Random | None = None) -> None:
        """Runs the next mini-batch. With `random`, it may be interrupted, and then runs again."""
        frames = {
            scan.alias: changes[scan.table].select(
                *(F.col(name).alias(one.name) for one, name in scan.columns if not one.name.startswith("$")),
                *([F.col("op").alias(OPERATION)] if self.removes else []),
            )
            for scan in self._scans
        }
        frame = one_frame(self._scans, frames)
        small_bytes = 0 if random is not None and random.random() < _LARGE else 1 << 64
        work = Changes(self.plan, self._scans, {}, BUCKETS, small_bytes)
        tries = 1 if random is None else random.choice((1, 1, 2, 3))
        for number in range(tries):
            fence = 10 * self.batches + number
            stop = None if random is None or number == tries - 1 else random.randint(0, 2 * len(self.plan.steps))
            undo(self.directory, self.batches, fence, len(self.plan.steps), BUCKETS)
            try:
                with (
                    _interrupted(stop, random or Random(0)),
                    work.of_batch(frame, self.batches, self.directory, fence) as made,
                ):
                    emitted = made.collect()
            except InterruptedRunError:
                continue
        self._take(emitted)
        self.batches += 1

    def _take(self, emitted: Sequence[Row]) -> None:
        if self.is_log:
            for row in emitted:
                self._apply(row)
            below_zero = [values for values, number in self.rows.values() if number < 0]
            assert not below_zero, f"rows that were removed but are not there: {below_zero}"
            return
        width = len(self.plan.output)
        for row in emitted:
            values, weight = tuple(row)[:width], 1 if self.plan.weight is None else row[self.plan.weight]
            key = str(len(self.rows)) if self.plan.keys is None else repr([row[name] for name in self.plan.keys])
            self.rows[key] = (values, weight)

    def _apply(self, row: Row) -> None:
        """Adds or removes a row by its type. A row may be removed before it is added, in the same mini-batch."""
        *values, kind = tuple(row)
        # A state has one zero.
        key = repr([0.0 if value == 0 and isinstance(value, float) else value for value in values])
        number = self.rows[key][1] if key in self.rows else 0
        self.rows[key] = (tuple(values), number + (1 if kind in ADDING else -1))

    @property
    def result(self) -> list[tuple[Any, ...]]:
        """The rows of the result."""
        return [values for values, weight in self.rows.values() for _ in range(weight)]


@contextmanager
def _interrupted(stop: int | None, random: Random) -> Any:
    """Inside, the computation with this number, of the state or of a join, is the last one that ends. The most rows of
    a small mini-batch are chosen.
    """
    done = [0]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def task(*arguments: Any, **more: Any) -> Any:
            made = original(*arguments, **more)
            done[0] += 1
            if stop is not None and done[0] > stop:
                raise InterruptedRunError
            return made

        return task

    batch = changes_run._Batch
    with (
        patch.object(changes_run, "SMALL_ROWS", random.choice(_SMALL_ROWS)),
        patch.object(batch, "_through_state", counted(batch._through_state)),
        patch.object(batch, "_computed", counted(batch._computed)),
    ):
        yield


def _chosen(random: Random, rows: Sequence[Any]) -> set[int]:
    """Returns places of rows: none, some or all of them."""
    share = random.choice((0.0, 0.3, 0.3, 1.0))
    return {place for place in range(len(rows)) if random.random() < share}


def check(spark: SparkSession, session: SparkSession, directory: Path, seed: int, number: int) -> tuple[str, str]:
    """Runs query `number` of `seed` in some mini-batches. Returns its SQL, and what differs from a batch query,
    `refused` if the service refuses it, or an empty text.
    """
    random = Random(f"{seed} {number}")
    sql = QueryMaker(random).query(random.randint(1, 3))
    streams = tuple(name for name in "st" if f"FROM {name}" in sql)
    removes = random.random() < _REMOVING
    is_log = random.random() < _LOGS
    try:
        run = ChangesRun(session, sql, streams, directory / str(number), removes, is_log)
    except SpecError as error:
        return sql, f"refused: {error}"
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in streams}
    oracle = in_one_piece(spark)
    for _ in range(random.randint(2, 3)):
        new = {name: facts(random.choice((0, 3, 15)), 0.3, random.randint(0, 1 << 30)) for name in streams}
        # Equal rows have weights above 1.
        new = {name: own + own[: random.choice((0, 0, 5))] for name, own in new.items()}
        gone = {name: _chosen(random, own) if removes else set() for name, own in rows.items()}
        short = {name: facts(random.choice((0, 4)), 0.3, random.randint(0, 1 << 30)) if removes else [] for name in new}
        changes = {
            name: [(*row, random.choice(ADDING)) for row in (*own, *short[name])]
            + [(*row, random.choice(REMOVING)) for row in (*short[name], *(rows[name][place] for place in gone[name]))]
            for name, own in new.items()
        }
        ddl = f"{_DDL}, op STRING"
        run.run({name: session.createDataFrame(own, ddl) for name, own in changes.items()}, random)
        for name, own in new.items():
            rows[name] = [row for place, row in enumerate(rows[name]) if place not in gone[name]] + own
            oracle.createDataFrame(rows[name], _DDL).createOrReplaceTempView(name)
        found = difference(oracle.sql(in_spark(sql)).collect(), run.result)
        if found is not None:
            return sql, f"after mini-batch {run.batches - 1}: {found}"
    return sql, ""


def main() -> None:
    """Checks queries, and prints the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    sys.stdout.write(f"seed {arguments.seed}\n")
    tally: Counter[str] = Counter()
    builder = SparkSession.builder.master("local[1]")
    for name, value in _SPARK.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    ends = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as directory:
        for number in range(arguments.first, arguments.first + arguments.queries):
            if time.monotonic() > ends:
                break
            sql, found = check(spark, in_one_piece(spark), Path(directory), arguments.seed, number)
            kind = "equal" if not found else found.partition(":")[0].partition(" ")[0]
            tally[kind] += 1
            if found:
                sys.stdout.write(f"query {number}: {found}\n  {sql}\n")
                sys.stdout.flush()
            if arguments.json is not None:
                arguments.json.write_text(json.dumps({"seed": arguments.seed, **tally}) + "\n")
    sys.stdout.write(f"{dict(tally)}\n")
    sys.exit(1 if set(tally) - {"equal", "refused"} else 0)


if __name__ == "__main__":
    main()
