"""Runs queries over Parquet files with the engine, as a worker does, and with DuckDB."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import duckdb
from pyspark.sql import SparkSession

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.reports import RuleOutcome
from service.sql.compile import compile_job
from service.sql.resolve.bound import BoundQuery
from tests.conformance.combinations import Settings
from tests.conformance.laboratory import as_if_large, parquet, table_input
from tests.support.ordered_rows import difference_by_keys, sort_keys
from tests.support.rows import difference_from_duckdb
from workers.engine.spark.engine import Engine, PlannedQuery
from workers.engine.spark.statistics_cache import StatisticsCache


@dataclass(frozen=True)
class Answer:
    """The comparison of a query: DuckDB's number of rows, how the engine's rows differ (None if they are equal), and
    the rules that fired.
    """

    rows: int
    difference: str | None
    fired: frozenset[str]


class DuckDBComparison:
    """The tables below `root`, each a file `NAME.parquet` or a directory of files. Use it as a context manager.

    `known` are the statistics that the queries share; each gathers its own without them. `setting` is a statement that
    DuckDB runs first.
    """

    def __init__(
        self, spark: SparkSession, root: Path, *, known: StatisticsCache | None = None, setting: str = ""
    ) -> None:
        self._spark = spark
        self._known = known
        self._setting = setting
        self._paths = {path.stem: path for path in sorted(root.iterdir())}
        self._inputs = {name: table_input(root, name, parquet(path.name)) for name, path in self._paths.items()}
        self._duck = duckdb.connect(config={"threads": 2})

    def __enter__(self) -> Self:
        self._duck.execute(self._setting or "SELECT 1")
        for name, path in self._paths.items():
            self._duck.execute(f"CREATE VIEW {name} AS FROM '{path}{'/*.parquet' if path.is_dir() else ''}'")
        return self

    def __exit__(self, *_: object) -> None:
        self._duck.close()

    def compiled(self, text: str, settings: Settings | None = None) -> BoundQuery:
        """Compiles a query; unsupported forced settings are left to the rules. Raises SpecError."""
        sources = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in self._inputs.items()}
        spec = JobSpec.model_validate({"tables": sources, "sql": text, "settings": settings or {}})
        schemas = {name: table.schema for name, table in self._inputs.items()}
        return compile_job(spec, schemas, is_accepted=True)

    def ask(self, text: str, duckdbs: str, settings: Settings | None = None, *, times: int = 1) -> Answer:
        """Runs `text` with the engine and the equivalent `duckdbs` with DuckDB, and compares the rows in order. The
        query is planned as if the tables were `times` as large.
        """
        planned = self._planned(text, settings, times)
        expected = self._duck.execute(duckdbs).fetchall()
        return _answer(len(expected), difference_from_duckdb(expected, planned.frame.collect()), planned)

    def ask_unordered(self, text: str, settings: Settings | None = None) -> Answer:
        """Runs `text` with the engine and with DuckDB, and compares the rows as multisets, and the order of the sort
        keys.
        """
        planned = self._planned(text, settings)
        names, expected = self.expected(text)
        difference = difference_by_keys(expected, planned.frame.collect(), sort_keys(text, names))
        return _answer(len(expected), difference, planned)

    def expected(self, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Runs `text` with DuckDB, and returns the names of the columns and the rows."""
        result = self._duck.execute(text)
        return [column[0] for column in result.description or ()], result.fetchall()

    def _planned(self, text: str, settings: Settings | None, times: int = 1) -> PlannedQuery:
        session = self._spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "4")
        query, chosen = self.compiled(text, settings), JobSettings.model_validate(settings or {})
        with as_if_large(times) if times > 1 else nullcontext():
            return Engine(session, 2, self._known).plan(query, self._inputs, chosen)


def _answer(rows: int, difference: str | None, planned: PlannedQuery) -> Answer:
    fired = {trace.rule for trace in planned.made.trace if trace.outcome is RuleOutcome.FIRED}
    return Answer(rows, difference, frozenset(fired))


def rules_for(name: str, by_rule: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the rules that should fire for the query `name`."""
    return {rule for rule, names in by_rule.items() if name in names}
