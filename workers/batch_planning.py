"""Plans the query of a batch job: finds its files, compiles it, and has the engine plan it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.datasets.files import find_table_files
from service.datasets.roots import Root
from service.datasets.schemas import read_schema
from service.spec.bound import BoundQuery
from service.spec.compile import compile_job
from service.spec.job import JobSpec
from workers.attempt import Attempt
from workers.engine.spark.driver import Driver
from workers.engine.spark.engine import Engine, PlannedQuery, TableInput
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.planning import labelled


@dataclass(frozen=True)
class PlannedJob:
    """A batch job that is ready to run, and the engine that runs it. `tables` is by table name."""

    engine: Engine
    planned: PlannedQuery
    tables: dict[str, TableInput]


def plan_batch_job(
    attempt: Attempt, driver: Driver, spec: JobSpec, roots: Sequence[Root], known_files: StatisticsCache
) -> PlannedJob:
    """Plans the job in the calling thread. It writes nothing, since the caller may have abandoned it.

    Raises AttemptStopped at the next step after the attempt is to stop; otherwise as `compile_job` and `Engine.plan`.
    """
    query, tables = _compile(attempt, spec, roots)
    attempt.check()
    with labelled(attempt, driver):
        attempt.check()
        engine = Engine(driver.session_for_job(), driver.slots, known_files)
        attempt.check()
        planned = engine.plan(query, tables, spec.settings, crashes=attempt.claim.crashes, check=attempt.check)
    return PlannedJob(engine, planned, tables)


def _compile(attempt: Attempt, spec: JobSpec, roots: Sequence[Root]) -> tuple[BoundQuery, dict[str, TableInput]]:
    """Checks again what the submission checked, since files may have changed; except the settings, of which the version
    that accepted the job may have refused fewer.
    """
    tables = {}
    for name, source in spec.file_tables.items():
        attempt.check()
        files = find_table_files(name, source, roots)
        tables[name] = TableInput(source, files, read_schema(name, source, files))
    attempt.check()
    schemas = {name: table.schema for name, table in tables.items()}
    return compile_job(spec, schemas, is_accepted=True), tables
